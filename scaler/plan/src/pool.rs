//! A pool of GPUs that several policies share: who gets how much of it, and how far each may go now.
//!
//! Two numbers for each claim. Its *share* is where it should end: minimums first, then demand, higher priority first, and the same fraction of the
//! demand within one priority. Its *allotment* is what it may hold at this instant: the share, as far as the others have let go already. What a claim
//! holds counts until its pods are gone, so the pool is never exceeded on the way from one split to another.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::decide::{decide, least_gpus};
use crate::fleet::Fleet;
use crate::history::History;
use crate::policy::{Budget, Policy};

/// Within one priority, holdings are evened out only when a claim is behind its even part by more than one part in this many: every move costs a
/// start.
const DEAD_BAND: u64 = 10;
/// All of it, in millionths.
const WHOLE: u64 = 1_000_000;

/// What one policy holds of a pool and asks of it, in GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// A higher one is served first.
    pub priority: i32,
    /// What counts as held now: the larger of what exists, terminating pods included, what is asked for, and what was granted.
    pub held: u64,
    /// GPUs of the minimums of all its roles.
    pub minimum: u64,
    /// GPUs that it would take if the pool were its own.
    pub wanted: u64,
    /// GPUs of its smallest unit. What is left over is handed out in these.
    pub step: u64,
}

/// What a policy would do with a whole pool for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// GPUs of the minimums of all its roles.
    pub minimum: u64,
    /// GPUs that it wants.
    pub wanted: u64,
    /// GPUs that exist, terminating ones included, or are asked for.
    pub held: u64,
    /// GPUs of its smallest unit.
    pub step: u64,
}

/// What `policy` would do with `pool` GPUs for itself. `None`: the GPUs of a unit or of a set are not known, so that no budget can hold it.
#[must_use]
pub fn ask(
    policy: &Policy,
    history: &History,
    fleet: &Fleet,
    pool: u32,
    now: Timestamp,
) -> Option<Ask> {
    let held = fleet.committed_gpus().filter(|_| fleet.knows_gpus())?;
    let alone = policy.with_budget(Budget::Gpus(pool));
    let decision = decide(&alone, history, fleet, now);
    let units = fleet.roles.iter().filter_map(|role| role.gpus_per_unit);
    Some(Ask {
        minimum: least_gpus(&alone, history, fleet, now),
        wanted: decision.gpus?.wanted,
        held,
        step: units.filter(|gpus| *gpus > 0).min().unwrap_or(1).into(),
    })
}

/// Where each claim should end: GPUs, in the order of the claims, together at most `limit`.
#[must_use]
pub fn shares(limit: u64, claims: &[Claim]) -> Vec<u64> {
    let mut shares = vec![0; claims.len()];
    let mut left = limit;
    for priority in priorities(claims) {
        for (share, claim) in shares.iter_mut().zip(claims) {
            if claim.priority == priority {
                *share = claim.minimum.min(left);
                left -= *share;
            }
        }
    }
    for priority in priorities(claims) {
        let class: Vec<Part> = claims
            .iter()
            .zip(&shares)
            .enumerate()
            .filter(|(_, (claim, _))| claim.priority == priority)
            .map(|(index, (claim, floor))| Part::new(index, claim, *floor))
            .collect();
        let pot = left + class.iter().map(|part| part.floor).sum::<u64>();
        let parts = split(pot, &class);
        left = pot - parts.iter().sum::<u64>();
        for (part, share) in class.iter().zip(parts) {
            shares[part.index] = share;
        }
    }
    shares
}

/// What each claim may hold now on its way to its share: with what the others hold, together at most `limit` whenever the holdings are.
#[must_use]
pub fn allotments(limit: u64, claims: &[Claim], shares: &[u64]) -> Vec<u64> {
    let held: u64 = claims.iter().map(|claim| claim.held).sum();
    let mut free = limit.saturating_sub(held);
    let mut allotments: Vec<u64> = claims
        .iter()
        .zip(shares)
        .map(|(claim, share)| claim.held.min(*share))
        .collect();
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by_key(|index| {
        let claim = &claims[*index];
        (
            Reverse(claim.priority),
            progress(claim.held, shares[*index]),
        )
    });
    for index in order {
        let more = shares[index].saturating_sub(claims[index].held).min(free);
        allotments[index] += more;
        free -= more;
    }
    allotments
}

fn priorities(claims: &[Claim]) -> impl Iterator<Item = i32> + use<> {
    let all: BTreeSet<Reverse<i32>> = claims.iter().map(|claim| Reverse(claim.priority)).collect();
    all.into_iter().map(|Reverse(priority)| priority)
}

/// How much of `whole` is there, in millionths: the claim with the least is served first.
fn progress(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * u128::from(WHOLE) / u128::from(whole.max(1)))
        .unwrap_or(u64::MAX)
}

/// One claim of a class.
#[derive(Debug, Clone, Copy)]
struct Part {
    index: usize,
    /// What it has in any case.
    floor: u64,
    wanted: u64,
    /// What it holds, from its floor to what it wants.
    held: u64,
    step: u64,
}

impl Part {
    fn new(index: usize, claim: &Claim, floor: u64) -> Self {
        let wanted = claim.wanted.max(floor);
        Self {
            index,
            floor,
            wanted,
            held: claim.held.clamp(floor, wanted),
            step: claim.step.max(1),
        }
    }

    /// How far behind its even part a claim may stay before the others give way.
    fn slack(&self, even: u64) -> u64 {
        self.step.max(even / DEAD_BAND)
    }

    /// This many millionths of what it wants, in whole steps.
    fn at(&self, millionths: u64) -> u64 {
        let even = u128::from(self.wanted) * u128::from(millionths) / u128::from(WHOLE);
        match u64::try_from(even) {
            Ok(even) if even < self.wanted => even / self.step * self.step,
            _ => self.wanted,
        }
    }
}

/// Splits `pot` within one priority: even parts, unless what is held is near enough to them. Together at most `pot`, which must hold all floors.
fn split(pot: u64, class: &[Part]) -> Vec<u64> {
    let even = fill(pot, class, |part| part.floor);
    if class.iter().map(|part| part.held).sum::<u64>() > pot {
        return even;
    }
    let kept = fill(pot, class, |part| part.held);
    let mut pairs = class.iter().zip(kept.iter().zip(&even));
    if pairs.all(|(part, (kept, even))| kept + part.slack(*even) >= *even) {
        kept
    } else {
        even
    }
}

/// Fills up from `from` towards what is wanted, the claim that is furthest behind first, in whole steps, while `pot` lasts.
///
/// The even level is found by halving, so that the work does not grow with the number of GPUs; only what that level leaves over is handed out step by
/// step.
fn fill(pot: u64, class: &[Part], from: impl Fn(&Part) -> u64) -> Vec<u64> {
    let at = |millionths: u64| class.iter().map(move |part| part.at(millionths));
    let filled = |millionths: u64| -> Vec<u64> {
        let parts = class.iter().zip(at(millionths));
        parts.map(|(part, even)| even.max(from(part))).collect()
    };
    let (mut good, mut bad) = (0, WHOLE + 1);
    while good + 1 < bad {
        let middle = u64::midpoint(good, bad);
        if filled(middle).iter().sum::<u64>() <= pot {
            good = middle;
        } else {
            bad = middle;
        }
    }
    let mut parts = filled(good);
    let mut left = pot.saturating_sub(parts.iter().sum());
    loop {
        let next_step = |index: usize| class[index].step.min(class[index].wanted - parts[index]);
        let open = (0..class.len()).filter(|index| (1..=left).contains(&next_step(*index)));
        let behind = |index: &usize| progress(parts[*index], class[*index].wanted);
        let Some(next) = open.min_by_key(behind) else {
            return parts;
        };
        let more = next_step(next);
        parts[next] += more;
        left -= more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(priority: i32, held: u64, wanted: u64) -> Claim {
        Claim {
            priority,
            held,
            minimum: 8,
            wanted,
            step: 8,
        }
    }

    #[test]
    fn enough_for_all_is_given_to_all() {
        let claims = [claim(0, 8, 24), claim(0, 16, 16)];
        assert_eq!(shares(64, &claims), [24, 16]);
        assert_eq!(allotments(64, &claims, &[24, 16]), [24, 16]);
    }

    #[test]
    fn a_higher_priority_is_served_first_and_minimums_before_that() {
        let claims = [claim(10, 40, 64), claim(100, 8, 48), claim(1, 8, 64)];
        let shares = shares(64, &claims);
        assert_eq!(shares, [8, 48, 8]);
        // The lower one gives way at once; the higher one gets what has been let go.
        assert_eq!(allotments(64, &claims, &shares), [8, 16, 8]);
    }

    #[test]
    fn one_priority_serves_the_same_fraction_in_whole_steps() {
        let claims = [claim(0, 0, 64), claim(0, 0, 64), claim(0, 0, 64)];
        assert_eq!(shares(64, &claims), [24, 24, 16]);
        let claims = [claim(0, 0, 96), claim(0, 0, 32)];
        assert_eq!(shares(64, &claims), [48, 16]);
    }

    #[test]
    fn a_small_imbalance_is_left_alone_and_a_large_one_is_not() {
        let claims = [claim(0, 40, 64), claim(0, 24, 64)];
        assert_eq!(shares(64, &claims), [40, 24]);
        let claims = [claim(0, 56, 64), claim(0, 8, 64)];
        assert_eq!(shares(64, &claims), [32, 32]);
    }

    #[test]
    fn a_pool_below_the_minimums_serves_the_higher_priority() {
        let claims = [claim(1, 0, 8), claim(2, 0, 8)];
        assert_eq!(shares(8, &claims), [0, 8]);
    }

    #[test]
    fn nothing_grows_while_more_is_held_than_the_pool_has() {
        let claims = [claim(1, 40, 40), claim(2, 40, 64)];
        let shares = shares(64, &claims);
        assert_eq!(shares, [8, 56]);
        assert_eq!(allotments(64, &claims, &shares), [8, 40]);
    }

    fn claims() -> impl Strategy<Value = Vec<Claim>> {
        let one = (-2_i32..3, 0_u64..80, 0_u64..20, 0_u64..120, 1_u64..17).prop_map(
            |(priority, held, minimum, wanted, step)| Claim {
                priority,
                held,
                minimum,
                wanted,
                step,
            },
        );
        prop::collection::vec(one, 0..7)
    }

    proptest! {
        #[test]
        fn the_pool_is_never_exceeded_on_the_way(limit in 0_u64..300, claims in claims()) {
            let shares = shares(limit, &claims);
            prop_assert!(shares.iter().sum::<u64>() <= limit);
            let allotments = allotments(limit, &claims, &shares);
            let held: u64 = claims.iter().map(|claim| claim.held).sum();
            let most: u64 = claims.iter().zip(&allotments).map(|(claim, allotted)| claim.held.max(*allotted)).sum();
            prop_assert!(most <= limit.max(held), "{most} of {limit}, {held} held");
            for ((claim, share), allotted) in claims.iter().zip(&shares).zip(&allotments) {
                prop_assert!(*share <= claim.wanted.max(claim.minimum));
                prop_assert!(allotted <= share);
                prop_assert!(*allotted >= claim.held.min(*share), "what is held within the share stays");
            }
        }

        #[test]
        fn nothing_is_left_that_a_whole_step_would_fit(limit in 0_u64..300, claims in claims()) {
            let shares = shares(limit, &claims);
            let left = limit - shares.iter().sum::<u64>();
            for (claim, share) in claims.iter().zip(&shares) {
                let rest = claim.wanted.saturating_sub(*share);
                prop_assert!(rest == 0 || rest.min(claim.step) > left, "{left} left, {rest} wanted");
            }
        }

        #[test]
        fn lower_claims_never_cost_a_higher_one(limit in 0_u64..300, claims in claims(), more in 0_u64..100) {
            let before = shares(limit, &claims);
            let Some(lowest) = claims.iter().map(|claim| claim.priority).min() else { return Ok(()) };
            let greedy: Vec<Claim> = claims.iter().map(|claim| {
                if claim.priority == lowest { Claim { wanted: claim.wanted + more, ..*claim } } else { *claim }
            }).collect();
            let after = shares(limit, &greedy);
            for (index, claim) in claims.iter().enumerate().filter(|(_, claim)| claim.priority > lowest) {
                prop_assert_eq!(before[index], after[index], "{:?}", claim);
            }
        }

        #[test]
        fn a_split_that_has_been_reached_is_kept(limit in 0_u64..300, claims in claims()) {
            let first = shares(limit, &claims);
            let settled: Vec<Claim> = claims.iter().zip(&first).map(|(claim, share)| Claim { held: *share, ..*claim }).collect();
            prop_assert_eq!(shares(limit, &settled), first);
        }
    }
}
