//! The part of a Kubernetes HorizontalPodAutoscaler (autoscaling/v2, release 1.37) that comes after the recommendation: windows, limits, bounds.

use std::collections::VecDeque;
use std::time::Duration;

/// `behavior` of an HPA.
#[derive(Debug, Clone, PartialEq)]
pub struct Behavior {
    /// `scaleUp`.
    pub up: ScalingRules,
    /// `scaleDown`.
    pub down: ScalingRules,
}

/// One direction.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingRules {
    /// `stabilizationWindowSeconds`.
    pub window: Duration,
    /// `policies`.
    pub policies: Vec<ScalingPolicy>,
    /// `selectPolicy`.
    pub select: Select,
    /// `tolerance`.
    pub tolerance: f64,
}

/// How much may change in a period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingPolicy {
    /// How much.
    pub amount: Amount,
    /// `periodSeconds`.
    pub period: Duration,
}

/// `type` and `value` of a scaling policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// So many pods.
    Pods(u32),
    /// This share of the pods at the period's start, in percent.
    Percent(u32),
}

/// Which of several policies counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// The one that permits the largest change.
    Max,
    /// The one that permits the smallest change.
    Min,
    /// None: nothing moves in this direction.
    Disabled,
}

/// The longest `periodSeconds` that the API takes.
const LONGEST_PERIOD: Duration = Duration::from_secs(1800);

/// Tolerance when none is written.
pub const TOLERANCE: f64 = 0.1;

impl ScalingRules {
    /// One or more policies under `selectPolicy: Max`, with the default tolerance.
    #[must_use]
    pub fn new(window: u64, policies: &[(Amount, u64)]) -> Self {
        Self {
            window: Duration::from_secs(window),
            policies: policies
                .iter()
                .map(|(amount, period)| ScalingPolicy {
                    amount: *amount,
                    period: Duration::from_secs(*period),
                })
                .collect(),
            select: Select::Max,
            tolerance: TOLERANCE,
        }
    }
}

impl Default for Behavior {
    /// What an empty `behavior` block means.
    fn default() -> Self {
        Self {
            up: ScalingRules::new(0, &[(Amount::Percent(100), 15), (Amount::Pods(4), 15)]),
            down: ScalingRules::new(300, &[(Amount::Percent(100), 15)]),
        }
    }
}

/// What an HPA remembers of one target.
#[derive(Debug, Clone)]
pub struct Stabiliser {
    behavior: Behavior,
    recommendations: VecDeque<(Duration, u32)>,
    added: VecDeque<(Duration, u32)>,
    removed: VecDeque<(Duration, u32)>,
}

impl Stabiliser {
    /// Nothing remembered yet.
    #[must_use]
    pub fn new(behavior: Behavior) -> Self {
        Self {
            behavior,
            recommendations: VecDeque::new(),
            added: VecDeque::new(),
            removed: VecDeque::new(),
        }
    }

    /// The block that it follows.
    #[must_use]
    pub fn behavior(&self) -> &Behavior {
        &self.behavior
    }

    /// From a recommendation to the number that is written, inside `min` and `max`; a change counts as carried out.
    ///
    /// Changes of both directions within a period count for its start, as in the controller's code.
    pub fn settle(
        &mut self,
        now: Duration,
        current: u32,
        recommended: u32,
        bounds: (u32, u32),
    ) -> u32 {
        let (min, max) = bounds;
        for changes in [&mut self.added, &mut self.removed] {
            changes.retain(|(at, _)| now.saturating_sub(*at) < LONGEST_PERIOD);
        }
        let stable = self.stabilise(now, current, recommended);
        let limited = if stable > current {
            stable.min(self.most(now, current).max(current)).min(max)
        } else if stable < current {
            stable.max(self.least(now, current).min(current)).max(min)
        } else {
            stable
        };
        let wanted = limited.clamp(min, max);
        if wanted > current {
            self.added.push_back((now, wanted - current));
        } else if wanted < current {
            self.removed.push_back((now, current - wanted));
        }
        wanted
    }

    fn stabilise(&mut self, now: Duration, current: u32, recommended: u32) -> u32 {
        if self.recommendations.is_empty() {
            self.recommendations.push_back((now, current));
        }
        let Behavior { up, down } = &self.behavior;
        let within = |window: Duration| {
            self.recommendations
                .iter()
                .filter(move |(at, _)| now.saturating_sub(*at) < window)
                .map(|(_, value)| *value)
        };
        let least = within(up.window).fold(recommended, u32::min);
        let most = within(down.window).fold(recommended, u32::max);
        let longest = up.window.max(down.window);
        self.recommendations.push_back((now, recommended));
        while self
            .recommendations
            .front()
            .is_some_and(|(at, _)| now.saturating_sub(*at) > longest)
        {
            self.recommendations.pop_front();
        }
        current.max(least).min(most)
    }

    /// Pods at a period's start.
    fn start(&self, now: Duration, current: u32, period: Duration) -> u32 {
        let within = |changes: &VecDeque<(Duration, u32)>| -> u32 {
            changes
                .iter()
                .filter(|(at, _)| now.saturating_sub(*at) < period)
                .map(|(_, change)| change)
                .sum()
        };
        (current + within(&self.removed)).saturating_sub(within(&self.added))
    }

    fn most(&self, now: Duration, current: u32) -> u32 {
        let rules = &self.behavior.up;
        let limits = rules.policies.iter().map(|policy| {
            let start = self.start(now, current, policy.period);
            match policy.amount {
                Amount::Pods(pods) => start.saturating_add(pods),
                Amount::Percent(percent) => percent_up(start, percent),
            }
        });
        match rules.select {
            Select::Max => limits.max().unwrap_or(current),
            Select::Min => limits.min().unwrap_or(current),
            Select::Disabled => current,
        }
    }

    fn least(&self, now: Duration, current: u32) -> u32 {
        let rules = &self.behavior.down;
        let limits = rules.policies.iter().map(|policy| {
            let start = self.start(now, current, policy.period);
            match policy.amount {
                Amount::Pods(pods) => start.saturating_sub(pods),
                Amount::Percent(percent) => {
                    start.saturating_mul(100_u32.saturating_sub(percent)) / 100
                }
            }
        });
        match rules.select {
            Select::Max => limits.min().unwrap_or(current),
            Select::Min => limits.max().unwrap_or(current),
            Select::Disabled => current,
        }
    }
}

fn percent_up(start: u32, percent: u32) -> u32 {
    start
        .saturating_mul(100_u32.saturating_add(percent))
        .div_ceil(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn up_is_the_larger_of_double_and_four_in_fifteen_seconds() {
        let mut hpa = Stabiliser::new(Behavior::default());
        assert_eq!(hpa.settle(second(0), 1, 100, (1, 50)), 5);
        // Within the same fifteen seconds the period began with 1.
        assert_eq!(hpa.settle(second(10), 5, 100, (1, 50)), 5);
        assert_eq!(hpa.settle(second(15), 5, 100, (1, 50)), 10);
        assert_eq!(hpa.settle(second(30), 10, 100, (1, 50)), 20);
        assert_eq!(hpa.settle(second(60), 40, 100, (1, 50)), 50);
    }

    #[test]
    fn down_waits_for_the_largest_recommendation_of_the_window() {
        let mut hpa = Stabiliser::new(Behavior::default());
        assert_eq!(hpa.settle(second(0), 10, 10, (1, 50)), 10);
        assert_eq!(hpa.settle(second(15), 10, 4, (1, 50)), 10);
        assert_eq!(hpa.settle(second(299), 10, 4, (1, 50)), 10);
        // 300 s after it, the 10 no longer counts.
        assert_eq!(hpa.settle(second(300), 10, 4, (1, 50)), 4);
    }

    #[test]
    fn a_window_for_adding_takes_the_smallest_of_it() {
        let behavior = Behavior {
            up: ScalingRules::new(30, &[(Amount::Pods(10), 15)]),
            ..Behavior::default()
        };
        let mut hpa = Stabiliser::new(behavior);
        assert_eq!(
            hpa.settle(second(0), 2, 8, (1, 50)),
            2,
            "seeded with what is there"
        );
        assert_eq!(hpa.settle(second(15), 2, 6, (1, 50)), 2);
        assert_eq!(hpa.settle(second(30), 2, 9, (1, 50)), 6);
    }

    #[test]
    fn the_smallest_policy_and_none_at_all() {
        let rules = |select| ScalingRules {
            select,
            ..ScalingRules::new(0, &[(Amount::Pods(1), 60), (Amount::Percent(50), 60)])
        };
        let with = |select| {
            Stabiliser::new(Behavior {
                up: rules(select),
                down: rules(select),
            })
        };
        assert_eq!(with(Select::Max).settle(second(0), 10, 30, (1, 50)), 15);
        assert_eq!(with(Select::Min).settle(second(0), 10, 30, (1, 50)), 11);
        assert_eq!(
            with(Select::Disabled).settle(second(0), 10, 30, (1, 50)),
            10
        );
        assert_eq!(
            with(Select::Max).settle(second(0), 11, 1, (1, 50)),
            5,
            "5.5 is cut off"
        );
        assert_eq!(with(Select::Min).settle(second(0), 11, 1, (1, 50)), 10);
        assert_eq!(with(Select::Disabled).settle(second(0), 11, 1, (1, 50)), 11);
    }
}
