//! Scenarios that come with the program: those of the benchmark protocol, in forms that run in seconds.
//!
//! Of the protocol's real traces, Azure's code trace (R2) may not be passed on with the program: `scenarios/r2.toml` names its file.

const SCENARIOS: [(&str, &str); 18] = [
    ("s1", include_str!("scenarios/s1.toml")),
    ("s2", include_str!("scenarios/s2.toml")),
    ("s3", include_str!("scenarios/s3.toml")),
    ("s4", include_str!("scenarios/s4.toml")),
    ("s5", include_str!("scenarios/s5.toml")),
    ("r1", include_str!("scenarios/r1.toml")),
    ("r3", include_str!("scenarios/r3.toml")),
    ("r3-hits", include_str!("scenarios/r3-hits.toml")),
    ("m1", include_str!("scenarios/m1.toml")),
    ("m2", include_str!("scenarios/m2.toml")),
    ("m3", include_str!("scenarios/m3.toml")),
    ("m4", include_str!("scenarios/m4.toml")),
    ("f1", include_str!("scenarios/f1.toml")),
    ("f1-node", include_str!("scenarios/f1-node.toml")),
    ("f2", include_str!("scenarios/f2.toml")),
    ("f2-frozen", include_str!("scenarios/f2-frozen.toml")),
    ("f3", include_str!("scenarios/f3.toml")),
    ("f4", include_str!("scenarios/f4.toml")),
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
