//! Scenarios that come with the program: the synthetic and real ones of the benchmark protocol, in forms that run in seconds.
//!
//! Of the protocol's real traces, Azure's code trace (R2) may not be passed on with the program: give a scenario file that names it.

const SCENARIOS: [(&str, &str); 8] = [
    ("s1", include_str!("scenarios/s1.toml")),
    ("s2", include_str!("scenarios/s2.toml")),
    ("s3", include_str!("scenarios/s3.toml")),
    ("s4", include_str!("scenarios/s4.toml")),
    ("s5", include_str!("scenarios/s5.toml")),
    ("r1", include_str!("scenarios/r1.toml")),
    ("r3", include_str!("scenarios/r3.toml")),
    ("r3-hits", include_str!("scenarios/r3-hits.toml")),
];

/// Their names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SCENARIOS.iter().map(|(name, _)| *name)
}

/// The text of one.
pub(super) fn find(name: &str) -> Option<&'static str> {
    let found = SCENARIOS.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}
