//! Traces inside the program, so that a realistic load needs no download. Provenance: `loadtest/traces/README.md`.

const TRACES: [(&str, &[u8]); 2] = [
    (
        "azure-2023-conv",
        include_bytes!("../../../traces/azure-2023-conv.csv.gz"),
    ),
    (
        "mooncake-conversation",
        include_bytes!("../../../traces/mooncake-conversation.csv.gz"),
    ),
];

/// Names of the built-in traces.
pub fn names() -> impl Iterator<Item = &'static str> {
    TRACES.iter().map(|(name, _)| *name)
}

/// The compressed bytes of a built-in trace.
pub(super) fn find(name: &str) -> Option<&'static [u8]> {
    TRACES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, bytes)| *bytes)
}
