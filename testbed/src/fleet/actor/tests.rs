use super::*;
use crate::fleet::script::{Engine, Played};

const SECOND: Duration = Duration::from_secs(1);

fn script() -> Script {
    Script {
        who: "a-0".to_owned(),
        init_containers: vec![],
        containers: vec![Played {
            name: "main".to_owned(),
            image: "x".to_owned(),
            is_sidecar: false,
        }],
        restart: Restart::Always,
        gate: None,
        engine: None,
        startup: None,
        shutdown: Duration::ZERO,
        complaints: vec![],
    }
}

fn with_engine() -> Script {
    Script {
        engine: Some(Engine {
            arguments: vec![],
            port: 8000,
        }),
        ..script()
    }
}

fn conduct(startup: Duration) -> Conduct {
    Conduct {
        startup,
        fenced: true,
        now: Timestamp::UNIX_EPOCH,
    }
}

fn ready(script: Script) -> Actor {
    let (mut actor, _) = Actor::arrive(script, true, conduct(Duration::ZERO));
    actor.step(Input::EngineListening, conduct(Duration::ZERO));
    assert_eq!(actor.stage, Stage::Ready);
    actor
}

#[test]
fn a_pod_without_delay_is_ready_with_one_write() {
    let (actor, effects) = Actor::arrive(script(), true, conduct(Duration::ZERO));
    assert_eq!(
        (actor.stage, effects),
        (Stage::Ready, vec![Effect::Publish])
    );
}

#[test]
fn a_pod_with_a_delay_is_written_as_running_and_then_as_ready() {
    let (mut actor, effects) = Actor::arrive(script(), true, conduct(20 * SECOND));
    assert_eq!(
        (actor.stage, effects),
        (
            Stage::Starting,
            vec![Effect::Publish, Effect::Wake(20 * SECOND)]
        )
    );
    assert_eq!(actor.step(Input::Woken, conduct(SECOND)), [Effect::Publish]);
    assert_eq!(actor.stage, Stage::Ready);
}

#[test]
fn a_gate_holds_the_pod_once_and_not_again() {
    let (mut actor, effects) = Actor::arrive(script(), false, conduct(Duration::ZERO));
    assert_eq!((actor.stage, effects), (Stage::Held, vec![Effect::Publish]));
    assert_eq!(actor.step(Input::Woken, conduct(SECOND)), []);
    assert_eq!(
        actor.step(Input::GateOpen, conduct(Duration::ZERO)),
        [Effect::Publish]
    );
    assert_eq!(actor.step(Input::GateOpen, conduct(Duration::ZERO)), []);
}

#[test]
fn an_engine_makes_the_pod_ready_when_it_listens_and_keeps_it_until_it_is_drained() {
    let (mut actor, effects) = Actor::arrive(with_engine(), true, conduct(Duration::ZERO));
    assert_eq!(
        (actor.stage, effects),
        (Stage::Opening, vec![Effect::StartEngine])
    );
    assert_eq!(
        actor.step(Input::EngineListening, conduct(SECOND)),
        [Effect::Publish]
    );
    let grace = 30 * SECOND;
    assert_eq!(
        actor.step(Input::Deleted { grace }, conduct(SECOND)),
        [Effect::Wake(grace), Effect::DrainEngine { grace }]
    );
    assert_eq!(
        actor.step(Input::Deleted { grace }, conduct(SECOND)),
        [],
        "the same deletion, seen again"
    );
    assert_eq!(
        actor.step(Input::EngineDrained, conduct(SECOND)),
        [Effect::StopEngine, Effect::Delete]
    );
    assert_eq!(actor.stage, Stage::Removed);
}

#[test]
fn an_engine_that_does_not_drain_is_ended_when_the_grace_is_over() {
    let mut actor = ready(with_engine());
    actor.step(Input::Deleted { grace: 30 * SECOND }, conduct(SECOND));
    assert_eq!(
        actor.step(Input::Woken, conduct(SECOND)),
        [Effect::StopEngine, Effect::Delete]
    );
}

#[test]
fn a_pod_without_engine_ends_at_once_or_after_its_own_time_within_the_grace() {
    let deleted = Input::Deleted { grace: 30 * SECOND };
    assert_eq!(
        ready(script()).step(deleted.clone(), conduct(SECOND)),
        [Effect::Delete]
    );
    let slow = |shutdown| {
        ready(Script {
            shutdown,
            ..script()
        })
        .step(deleted.clone(), conduct(SECOND))
    };
    assert_eq!(slow(5 * SECOND), [Effect::Wake(5 * SECOND)]);
    assert_eq!(slow(90 * SECOND), [Effect::Wake(30 * SECOND)]);
}

#[test]
fn a_crash_is_seen_and_restarts_by_the_restart_policy() {
    let crash = Input::Crash {
        exit_code: 1,
        stay_down: false,
    };
    let mut actor = ready(script());
    assert_eq!(
        actor.step(crash.clone(), conduct(Duration::ZERO)),
        [Effect::Publish, Effect::Wake(SHORTEST_RESTART)],
        "not ready for a moment, even without start-up delay"
    );
    assert_eq!((actor.restarts, actor.stage), (1, Stage::Starting));

    let mut actor = ready(Script {
        restart: Restart::Never,
        ..with_engine()
    });
    assert_eq!(
        actor.step(crash.clone(), conduct(SECOND)),
        [Effect::StopEngine, Effect::Publish]
    );
    assert_eq!(actor.stage, Stage::Ended { succeeded: false });
    assert_eq!(
        actor.step(crash, conduct(SECOND)),
        [],
        "it cannot crash twice"
    );

    let mut actor = ready(Script {
        restart: Restart::OnFailure,
        ..script()
    });
    actor.step(
        Input::Crash {
            exit_code: 0,
            stay_down: false,
        },
        conduct(SECOND),
    );
    assert_eq!(actor.stage, Stage::Ended { succeeded: true });
}

#[test]
fn a_pod_kept_down_stays_down_until_it_is_recovered() {
    let mut actor = ready(script());
    assert_eq!(
        actor.step(
            Input::Crash {
                exit_code: 1,
                stay_down: true
            },
            conduct(SECOND)
        ),
        [Effect::Publish]
    );
    assert_eq!(actor.step(Input::Woken, conduct(SECOND)), []);
    assert_eq!(
        actor.step(Input::Recover, conduct(SECOND)),
        [Effect::Publish, Effect::Wake(SECOND)]
    );
}

#[test]
fn an_engine_that_fails_again_and_again_is_restarted_ever_more_slowly() {
    let mut actor = ready(with_engine());
    let mut pauses = vec![];
    for _ in 0..8 {
        let effects = actor.step(
            Input::EngineFailed("bad profile".to_owned()),
            conduct(Duration::ZERO),
        );
        pauses.extend(effects.iter().filter_map(|effect| match effect {
            Effect::Wake(pause) => Some(pause.as_secs()),
            _ => None,
        }));
        if actor.stage != Stage::Opening {
            actor.step(Input::Woken, conduct(Duration::ZERO));
        }
    }
    assert_eq!(pauses, [1, 10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(actor.last.unwrap().message, "bad profile");
}

#[test]
fn a_pod_on_a_dead_node_is_silent_until_it_is_deleted() {
    let mut actor = ready(with_engine());
    assert_eq!(
        actor.step(Input::NodeDied, conduct(SECOND)),
        [Effect::StopEngine]
    );
    assert_eq!(actor.step(Input::Woken, conduct(SECOND)), []);
    let deleted = Input::Deleted { grace: 30 * SECOND };
    let unfenced = Conduct {
        fenced: false,
        ..conduct(SECOND)
    };
    assert_eq!(
        actor.clone().step(deleted.clone(), unfenced),
        [],
        "nobody confirms the end"
    );
    assert_eq!(
        actor.step(deleted, conduct(SECOND)),
        [Effect::StopEngine, Effect::Delete]
    );
}

#[test]
fn a_node_that_comes_back_starts_its_pods_anew_and_ends_deleted_ones() {
    let mut actor = ready(script());
    actor.step(Input::NodeDied, conduct(SECOND));
    assert_eq!(
        actor.clone().step(Input::NodeBack, conduct(SECOND)),
        [Effect::Publish]
    );
    let unfenced = Conduct {
        fenced: false,
        ..conduct(SECOND)
    };
    actor.step(Input::Deleted { grace: SECOND }, unfenced);
    assert_eq!(actor.step(Input::NodeBack, unfenced), [Effect::Delete]);

    let mut actor = ready(script());
    actor.step(Input::NodeDied, conduct(SECOND));
    actor.step(Input::NodeBack, conduct(SECOND));
    actor.step(Input::GateOpen, conduct(Duration::ZERO));
    assert_eq!((actor.stage, actor.restarts), (Stage::Ready, 1));
}

#[test]
fn an_ended_pod_on_a_dead_node_is_not_removed_behind_the_sites_back() {
    let unfenced = Conduct {
        fenced: false,
        ..conduct(SECOND)
    };
    let mut actor = Actor::ended(script(), true, Timestamp::UNIX_EPOCH);
    actor.step(Input::NodeDied, unfenced);
    assert_eq!(actor.step(Input::Deleted { grace: SECOND }, unfenced), []);
    assert_eq!(actor.step(Input::NodeBack, unfenced), [Effect::Delete]);
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    fn input() -> impl Strategy<Value = Input> {
        prop_oneof![
            Just(Input::GateOpen),
            Just(Input::Woken),
            Just(Input::EngineListening),
            Just(Input::EngineDrained),
            Just(Input::EngineFailed("x".to_owned())),
            (0u64..3).prop_map(|seconds| Input::Deleted {
                grace: Duration::from_secs(seconds)
            }),
            (0i32..2, any::<bool>()).prop_map(|(exit_code, stay_down)| Input::Crash {
                exit_code,
                stay_down
            }),
            Just(Input::Recover),
            Just(Input::NodeDied),
            Just(Input::NodeBack),
        ]
    }

    fn any_script() -> impl Strategy<Value = Script> {
        let restart = prop_oneof![
            Just(Restart::Always),
            Just(Restart::OnFailure),
            Just(Restart::Never)
        ];
        (any::<bool>(), restart, 0u64..3).prop_map(|(has_engine, restart, shutdown)| Script {
            restart,
            shutdown: Duration::from_secs(shutdown),
            ..if has_engine { with_engine() } else { script() }
        })
    }

    proptest! {
        /// Whatever happens in whatever order: a pod is removed once and is silent afterwards, a dead node writes
        /// nothing, and a pod with an engine is ready only while that engine is open.
        #[test]
        fn a_pod_keeps_its_promises(
            script in any_script(),
            gate_open in any::<bool>(),
            startup in 0u64..2,
            fenced in any::<bool>(),
            inputs in prop::collection::vec(input(), 0..40),
        ) {
            let conduct = Conduct { fenced, ..conduct(Duration::from_secs(startup)) };
            let has_engine = script.engine.is_some();
            let (mut actor, first) = Actor::arrive(script, gate_open, conduct);
            let mut is_open = first.contains(&Effect::StartEngine);
            let (mut is_cut_off, mut removals) = (false, 0);
            let mut steps = vec![];
            for input in inputs {
                let was_removed = actor.stage == Stage::Removed;
                let effects = actor.step(input.clone(), conduct);
                prop_assert!(!was_removed || effects.is_empty(), "{effects:?} after the removal");
                match input {
                    Input::NodeDied => is_cut_off = true,
                    Input::NodeBack => is_cut_off = false,
                    _ => {}
                }
                steps.push((input, effects.clone()));
                for effect in effects {
                    match effect {
                        Effect::StartEngine => is_open = true,
                        Effect::StopEngine => is_open = false,
                        Effect::Delete => removals += 1,
                        Effect::Publish => prop_assert!(!is_cut_off, "a dead node writes: {steps:?}"),
                        Effect::Wake(_) | Effect::DrainEngine { .. } => {}
                    }
                }
                prop_assert!(!(has_engine && actor.stage == Stage::Ready) || is_open, "ready without engine: {steps:?}");
            }
            prop_assert!(removals <= 1);
        }
    }
}
