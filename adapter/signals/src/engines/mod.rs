//! Inference servers: how to recognise each, and which of its series make up which signal.
//!
//! Each server is one file with its [`Engine`]: names only, no code. Adding one means a file, a line in [`ENGINES`] and
//! bodies with expected values in `testdata/`. The names, since when they exist and what they count are each server's own;
//! prefer counters that move with each step to those that move when a request ends. A server that is not here is described
//! by a [`Mapping`].

mod dynamo;
mod epp;
mod llamacpp;
mod lmdeploy;
pub(crate) mod mapping;
mod model;
mod nim;
mod ray;
mod recognise;
mod sglang;
mod signal;
mod table;
mod tensorrt_llm;
mod tgi;
mod triton;
mod vllm;

pub use mapping::{
    Aggregation, InvalidMapping, LabelCondition, Mapping, SignalMapping, Unit, UnknownName,
    validate as validate_mappings,
};
pub use model::{
    Engine, Fold, LabelTest, Mark, Reading, Role, RoleLabel, Rule, Sign, Source, Spelling, Term,
    Tier,
};
pub use recognise::{Recognition, Servers, recognise};
pub use signal::{Kind, Signal, UnknownSignal};
pub use table::table;

/// Every server, in the order in which they are looked for. Wrappers come before what they wrap.
pub static ENGINES: [&Engine; 14] = [
    &epp::ENGINE,
    &sglang::GATEWAY,
    &dynamo::FRONTEND,
    &dynamo::WORKER,
    &ray::NODE,
    &vllm::ENGINE,
    &sglang::ENGINE,
    &tensorrt_llm::ENGINE,
    &triton::TENSORRT_LLM,
    &triton::OTHER_BACKENDS,
    &lmdeploy::ENGINE,
    &tgi::ENGINE,
    &llamacpp::ENGINE,
    &nim::ENGINE,
];

/// What an engine is of which nothing else is said.
const PLAIN: Engine = Engine {
    name: "",
    versions: "",
    place: "",
    note: "",
    tier: Tier::Engine,
    marks: &[],
    spellings: &[],
    model_label: None,
    unnamed_model: None,
    role_label: None,
    start_time: None,
    process_label: None,
    appears_late: false,
    rules: &[],
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_engine_is_well_formed() {
        let names: BTreeSet<_> = ENGINES.iter().map(|engine| engine.name).collect();
        assert_eq!(names.len(), ENGINES.len(), "names are unique");
        for engine in ENGINES {
            let mut signals = BTreeSet::new();
            assert!(!engine.marks.is_empty(), "{}", engine.name);
            assert!(!engine.versions.is_empty(), "{}", engine.name);
            for rule in engine.rules {
                let at = format!("{}: {}", engine.name, rule.signal);
                assert!(signals.insert(rule.signal), "{at}: two rules");
                assert!(!rule.sources.is_empty(), "{at}");
                for source in rule.sources {
                    check(&at, rule.signal, source);
                }
            }
        }
    }

    fn check(at: &str, signal: Signal, source: &Source) {
        let [first, ..] = source.terms else {
            panic!("{at} has no terms")
        };
        assert!(
            !first.optional && first.role == Role::Add,
            "{at} starts with {first:?}"
        );
        let is_quotient = source
            .terms
            .iter()
            .any(|term| matches!(term.role, Role::Divisor | Role::DivisorOfEach));
        for term in source.terms {
            let reads = match signal.kind() {
                Kind::Ratio if is_quotient => Kind::Gauge,
                kind => kind,
            };
            // A share times a number, over that number, is a share again.
            let is_share = matches!(term.reading, Reading::Ratio) && is_quotient;
            assert!(is_share || term.reading.gives(reads), "{at}: {term:?}");
            assert!(
                term.role.is_sum() || matches!(signal.kind(), Kind::Gauge | Kind::Ratio),
                "{at}: {term:?}"
            );
            assert!(term.scale > 0.0, "{at}: {term:?}");
        }
    }
}
