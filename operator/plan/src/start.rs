//! The gate in front of a pod's containers: may they start, given how ready the cliques before them are?
//!
//! [`order`](crate::order) decides *which* cliques a clique starts after; the answer travels to the pod as arguments of
//! its init container. Here those arguments are read back and compared with what is ready. The rule is asked once: a
//! clique that becomes unready later stops nobody who has started.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

/// The cliques a pod waits for. Empty rules let it start at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartRules {
    minimum_of: BTreeMap<String, NonZeroU32>,
}

/// Ready pods of each clique, `0..`. A clique that is not listed does not exist, or has not been seen yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    ready_of: BTreeMap<String, u32>,
}

/// What the gate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Every clique has its minimum ready, all at the same time.
    Start,
    /// These do not, in the order of their names; never empty.
    Wait(Vec<Shortfall>),
}

/// A clique that is not ready enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Name of the PodClique.
    pub clique: String,
    /// Ready pods, or nothing when the clique is not known to exist.
    pub ready: Option<u32>,
    /// Ready pods that are needed.
    pub minimum: NonZeroU32,
}

/// Why arguments are not start rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The flag stands last, without a value.
    #[error(
        "{flag} needs a value: the clique's name, a colon and the ready pods it needs, such as set-0-router:1"
    )]
    MissingValue {
        /// The flag as written.
        flag: String,
    },
    /// No colon.
    #[error(
        "{value:?} names no minimum: write the clique's name, a colon and the ready pods it needs, such as {value}:1"
    )]
    MissingMinimum {
        /// The value as written.
        value: String,
    },
    /// Nothing before the colon.
    #[error("{value:?} names no clique: write the clique's name before the colon")]
    MissingName {
        /// The value as written.
        value: String,
    },
    /// What stands after the colon is not a number from 1 up.
    #[error(
        "{value:?} has minimum {minimum:?}: it must be a whole number of pods from 1 to 4294967295"
    )]
    BadMinimum {
        /// The value as written.
        value: String,
        /// What stands after the colon.
        minimum: String,
    },
    /// One clique with two minimums.
    #[error(
        "clique {clique} is named with minimum {first} and with minimum {second}: name it once"
    )]
    Contradiction {
        /// Name of the PodClique.
        clique: String,
        /// The minimum that comes first.
        first: NonZeroU32,
        /// The other one.
        second: NonZeroU32,
    },
}

impl StartRules {
    /// Reads the values of the flag `--podcliques`: `<clique>:<minimum>`, or several of these with commas between them.
    ///
    /// # Errors
    /// The first value that is not of that form, or a clique with two different minimums.
    pub fn parse<'v>(values: impl IntoIterator<Item = &'v str>) -> Result<Self, RuleError> {
        let mut minimum_of = BTreeMap::new();
        for value in values.into_iter().flat_map(|value| value.split(',')) {
            let (clique, minimum) = parse_value(value)?;
            match minimum_of.insert(clique.to_owned(), minimum) {
                Some(first) if first != minimum => {
                    let clique = clique.to_owned();
                    return Err(RuleError::Contradiction {
                        clique,
                        first,
                        second: minimum,
                    });
                }
                Some(_) | None => {}
            }
        }
        Ok(Self { minimum_of })
    }

    /// Reads the rules out of a container's whole argument list, where other arguments may stand too.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), or the flag stands last without a value.
    pub fn from_arguments<'a>(
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, RuleError> {
        let mut values = Vec::new();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                break;
            } else if argument == "--podcliques" || argument == "-p" {
                let missing = || RuleError::MissingValue {
                    flag: argument.to_owned(),
                };
                values.push(arguments.next().ok_or_else(missing)?);
            } else if let Some(value) = argument.strip_prefix("--podcliques=") {
                values.push(value);
            } else if let Some(value) = argument.strip_prefix("-p") {
                values.push(value.strip_prefix('=').unwrap_or(value));
            }
        }
        Self::parse(values)
    }

    /// Names of the cliques to wait for, sorted.
    pub fn cliques(&self) -> impl Iterator<Item = &str> {
        self.minimum_of.keys().map(String::as_str)
    }

    /// Whether there is nothing to wait for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.minimum_of.is_empty()
    }
}

fn parse_value(value: &str) -> Result<(&str, NonZeroU32), RuleError> {
    // Names hold no colon, but a colon more must not make half of a name.
    let (clique, minimum) = value
        .rsplit_once(':')
        .ok_or_else(|| RuleError::MissingMinimum {
            value: value.to_owned(),
        })?;
    if clique.is_empty() {
        return Err(RuleError::MissingName {
            value: value.to_owned(),
        });
    }
    let bad = || RuleError::BadMinimum {
        value: value.to_owned(),
        minimum: minimum.to_owned(),
    };
    if clique.contains(':') || !minimum.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(bad());
    }
    Ok((clique, minimum.parse().map_err(|_| bad())?))
}

impl Readiness {
    /// Notes how many pods of a clique are ready, or that it does not exist, and says whether that is news.
    pub fn note(&mut self, clique: &str, ready: Option<u32>) -> bool {
        match ready {
            Some(ready) => self.ready_of.insert(clique.to_owned(), ready) != Some(ready),
            None => self.ready_of.remove(clique).is_some(),
        }
    }
}

impl<N: Into<String>> FromIterator<(N, u32)> for Readiness {
    fn from_iter<I: IntoIterator<Item = (N, u32)>>(cliques: I) -> Self {
        Self {
            ready_of: cliques
                .into_iter()
                .map(|(name, ready)| (name.into(), ready))
                .collect(),
        }
    }
}

/// Whether containers may start. Readiness of cliques that the rules do not name makes no difference.
#[must_use]
pub fn gate(rules: &StartRules, readiness: &Readiness) -> Gate {
    let shortfall = |(clique, minimum): (&String, &NonZeroU32)| {
        let ready = readiness.ready_of.get(clique).copied();
        (ready.unwrap_or(0) < minimum.get()).then(|| Shortfall {
            clique: clique.clone(),
            ready,
            minimum: *minimum,
        })
    };
    let shortfalls: Vec<Shortfall> = rules.minimum_of.iter().filter_map(shortfall).collect();
    if shortfalls.is_empty() {
        Gate::Start
    } else {
        Gate::Wait(shortfalls)
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            clique,
            ready,
            minimum,
        } = self;
        match ready {
            Some(ready) => write!(f, "{clique} has {ready} of {minimum} pods ready"),
            None => write!(
                f,
                "{clique} does not exist yet ({minimum} ready pods needed)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(values: &[&str]) -> StartRules {
        StartRules::parse(values.iter().copied()).unwrap()
    }

    fn ready(cliques: &[(&str, u32)]) -> Readiness {
        cliques.iter().copied().collect()
    }

    fn waits_for(rules: &StartRules, readiness: &Readiness) -> Vec<String> {
        match gate(rules, readiness) {
            Gate::Start => Vec::new(),
            Gate::Wait(shortfalls) => shortfalls.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn starts_when_every_clique_has_its_minimum() {
        let rules = rules(&["s-0-pc-a:2", "s-0-sg-0-pc-b:1"]);
        assert_eq!(
            waits_for(&rules, &ready(&[("s-0-pc-a", 1)])),
            [
                "s-0-pc-a has 1 of 2 pods ready",
                "s-0-sg-0-pc-b does not exist yet (1 ready pods needed)"
            ]
        );
        assert_eq!(
            waits_for(&rules, &ready(&[("s-0-pc-a", 2), ("s-0-sg-0-pc-b", 0)])),
            ["s-0-sg-0-pc-b has 0 of 1 pods ready"]
        );
        assert_eq!(
            gate(&rules, &ready(&[("s-0-pc-a", 3), ("s-0-sg-0-pc-b", 1)])),
            Gate::Start
        );
        assert_eq!(
            gate(&StartRules::default(), &Readiness::default()),
            Gate::Start
        );
    }

    #[test]
    fn a_name_that_begins_with_another_is_another_clique() {
        let rules = rules(&["x-0-pc:1"]);
        assert_eq!(waits_for(&rules, &ready(&[("x-0-pc-b", 9)])).len(), 1);
    }

    #[test]
    fn a_clique_that_goes_away_does_not_count() {
        let rules = rules(&["a:1", "b:1"]);
        let mut readiness = ready(&[("a", 1)]);
        assert!(readiness.note("a", None));
        assert!(!readiness.note("a", None));
        assert!(readiness.note("b", Some(1)));
        assert!(!readiness.note("b", Some(1)));
        assert_eq!(
            waits_for(&rules, &readiness),
            ["a does not exist yet (1 ready pods needed)"]
        );
    }

    #[test]
    fn every_spelling_of_the_flag_is_read() {
        let expected = rules(&["a:1", "b:2", "c:3", "d:4", "e:5"]);
        let arguments = [
            "--podcliques=a:1",
            "--log=text",
            "-p",
            "b:2",
            "-pc:3",
            "--podcliques",
            "d:4,e:5",
            "--",
            "-pf:1",
        ];
        assert_eq!(StartRules::from_arguments(arguments).unwrap(), expected);
        assert!(StartRules::from_arguments([]).unwrap().is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        let why = |arguments: &[&str]| {
            StartRules::from_arguments(arguments.iter().copied())
                .unwrap_err()
                .to_string()
        };
        assert!(why(&["-p"]).starts_with("-p needs a value"));
        assert!(why(&["--podcliques=a"]).starts_with("\"a\" names no minimum"));
        assert!(why(&["--podcliques="]).starts_with("\"\" names no minimum"));
        assert!(why(&["--podcliques=:1"]).starts_with("\":1\" names no clique"));
        for minimum in ["0", "-1", "+1", "1.5", "x", "", "4294967296"] {
            assert!(
                why(&["-p", &format!("a:{minimum}")]).contains("must be a whole number"),
                "{minimum}"
            );
        }
        assert!(why(&["-pa:b:1"]).contains("must be a whole number"));
        assert_eq!(
            why(&["-pa:1", "-pa:2"]),
            "clique a is named with minimum 1 and with minimum 2: name it once"
        );
        assert!(StartRules::from_arguments(["-pa:1", "-pa:1"]).is_ok());
    }

    proptest! {
        #[test]
        fn the_gate_is_monotone_and_names_exactly_what_is_missing(
            minimums in prop::collection::btree_map("[a-c]", 1u32..4, 0..4),
            counts in prop::collection::btree_map("[a-d]", 0u32..4, 0..5),
        ) {
            let values: Vec<String> = minimums.iter().map(|(name, minimum)| format!("{name}:{minimum}")).collect();
            let rules = StartRules::parse(values.iter().map(String::as_str)).unwrap();
            let readiness: Readiness = counts.clone().into_iter().collect();
            let missing: Vec<&String> =
                minimums.iter().filter(|(name, minimum)| counts.get(*name).unwrap_or(&0) < *minimum).map(|(name, _)| name).collect();
            match gate(&rules, &readiness) {
                Gate::Start => prop_assert!(missing.is_empty()),
                Gate::Wait(shortfalls) => prop_assert_eq!(shortfalls.iter().map(|s| &s.clique).collect::<Vec<_>>(), missing),
            }
        }
    }
}
