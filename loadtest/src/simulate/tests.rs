//! Scenarios, cells and outputs.

use std::time::Duration;

use coppice_simulation::{Ended, Fate, Request};

use super::cells::{self, Cell, Entrant, Shard};
use super::overview::Overall;
use super::row::{self, Lines, Row, Rows};
use super::scenario::{Overrides, Scenario};
use super::sweep::{self, Goal};
use super::text::Group;
use super::{builtin, page, summary, text};
use crate::drive::objective::Objectives as Driven;

const SMALL: &str = r#"
name = "small"
profile = "llama-3.1-8b-fp8_h200_tp1"
[[role]]
name = "server"
stage = "aggregated"
min = 1
max = 6
initial = 1
[objectives]
ttft = "1s+0.5ms/token"
itl = "50ms"
[timing]
start-up = "30s"
[[stream]]
rate = "step:5@0s,60@120s"
duration = "5m"
input-tokens = "1000"
output-tokens = "200"
"#;

fn small() -> Scenario {
    Scenario::parse("small", SMALL, Overrides::default()).unwrap()
}

fn all_cells(policies: &[&str], seeds: u64) -> Vec<Cell> {
    let entrants = policies.iter().map(|policy| Entrant {
        label: (*policy).to_owned(),
        spec: policy.parse().unwrap(),
    });
    entrants
        .flat_map(|entrant| {
            (1..=seeds).map(move |seed| Cell {
                scenario: 0,
                entrant: entrant.clone(),
                seed,
            })
        })
        .collect()
}

fn run(cells: &[Cell], jobs: usize) -> Rows {
    let mut rows = Rows::new();
    cells::run(cells, &[small()], jobs, |row| {
        rows.insert(row.key(), row);
        Ok(())
    })
    .unwrap();
    rows
}

#[test]
fn every_built_in_scenario_can_be_run() {
    for name in builtin::names() {
        let scenario =
            Scenario::parse(name, builtin::find(name).unwrap(), Overrides::default()).unwrap();
        let instance = scenario.instance(1).unwrap();
        assert_eq!(scenario.written.name, name);
        assert!(!scenario.written.about.is_empty());
        assert!(instance.requests.len() > 1_000, "{name}");
    }
}

#[test]
fn a_seed_gives_the_same_requests_to_every_policy_and_another_seed_others() {
    let rows = run(&all_cells(&["static:1", "static:4", "hpa-load"], 2), 3);
    let digests = |seed: u64| -> Vec<&str> {
        let of_seed = rows.values().filter(|row| row.seed == seed);
        of_seed.map(|row| row.schedule_digest.as_str()).collect()
    };
    let (first, second) = (digests(1), digests(2));
    assert_eq!(first.len(), 3);
    assert!(first.iter().all(|digest| *digest == first[0]));
    assert!(second.iter().all(|digest| *digest == second[0]));
    assert_ne!(first[0], second[0]);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let cells = all_cells(&["coppice", "hpa-load", "static:3"], 2);
    assert_eq!(run(&cells, 1), run(&cells, 4));
}

#[test]
fn shards_are_all_cells_and_none_twice() {
    let shards: Vec<Shard> = ["1/3", "2/3", "3/3"]
        .map(|text| text.parse().unwrap())
        .into();
    for position in 0..100 {
        let owners = shards.iter().filter(|shard| shard.has(position)).count();
        assert_eq!(owners, 1);
    }
    for text in ["0/3", "4/3", "1", "a/b", "1/0"] {
        assert!(text.parse::<Shard>().is_err(), "{text} was accepted");
    }
}

#[test]
fn results_survive_their_file_and_a_cut_off_line_is_left_out() {
    let rows = run(&all_cells(&["static:2", "coppice"], 1), 2);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.jsonl");
    drop(Lines::create(&path, &rows).unwrap());
    assert_eq!(row::read(&path).unwrap(), rows);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 10]).unwrap();
    assert_eq!(row::read(&path).unwrap().len(), rows.len() - 1);
    std::fs::write(&path, format!("{{}}\n{text}")).unwrap();
    let error = format!("{:#}", row::read(&path).unwrap_err());
    assert!(error.contains("line 1"), "{error}");
    let other = text.replace("coppice-simulation/1", "coppice-simulation/9");
    std::fs::write(&path, other).unwrap();
    assert!(row::read(&path).is_err());
}

#[test]
fn the_smallest_good_fleet_is_found_and_one_fewer_would_not_do() {
    let scenario = small();
    let instance = scenario.instance(1).unwrap();
    let found = sweep::smallest(&instance, &[Goal::Attainment(0.99)], 1).unwrap();
    let units = found[0].units[0];
    assert!(found[0].reached && units > 1, "{found:?}");
    let fewer = format!("static:{}", units - 1);
    let rows = run(&all_cells(&[&fewer, &format!("static:{units}")], 1), 2);
    for row in rows.values() {
        assert_eq!(
            row.measures.attainment >= 0.99,
            row.policy != fewer,
            "{}",
            row.policy
        );
    }
    let impossible = sweep::smallest(&instance, &[Goal::Attainment(1.1)], 1).unwrap();
    assert!(!impossible[0].reached);
}

#[test]
fn text_and_page_show_every_policy_and_the_frontier() {
    let rows = run(&all_cells(&["static:1", "static:6", "coppice"], 2), 2);
    let text = text::render(&rows);
    let page = page::render(&rows);
    for policy in ["static:1", "static:6", "coppice"] {
        assert!(text.contains(policy), "{text}");
        assert!(page.contains(policy));
    }
    let starred: Vec<&str> = text.lines().filter(|line| line.contains('*')).collect();
    // The cheapest and the best are on the frontier in any case.
    assert!(
        starred.iter().any(|line| line.contains("static:1")),
        "{text}"
    );
    assert!(
        starred.iter().any(|line| line.contains("static:6")),
        "{text}"
    );
    assert!(text.contains("coppice against"), "{text}");
    assert!(page.contains("<svg") && page.contains("asked for") && !page.contains("NaN"));
}

/// Rows of [`SMALL`], and the same again as of a second scenario with half of the attainment, a tenth of the GPU-hours and a budget.
fn two_scenarios(policies: &[&str]) -> Rows {
    let rows = run(&all_cells(policies, 2), 2);
    let second = rows.values().cloned().map(|mut row| {
        row.scenario = "tiny".to_owned();
        row.scenario_digest = "other".to_owned();
        row.measures.attainment /= 2.0;
        row.measures.gpu_hours /= 10.0;
        row.measures.least_gpu_hours /= 10.0;
        row.measures.budget_violation_seconds = Some(30.0);
        (row.key(), row)
    });
    let second: Vec<_> = second.collect();
    rows.into_iter().chain(second).collect()
}

#[test]
fn over_all_scenarios_each_counts_the_same() {
    let rows = two_scenarios(&["static:4", "static:6"]);
    let groups = Group::all(&rows);
    let all = Overall::all(&groups);
    assert_eq!(all.len(), 2);
    let small = groups
        .iter()
        .find(|group| group.scenario == "small")
        .unwrap();
    for overall in &all {
        let entry = small.entry(&overall.policy).unwrap();
        let attained = entry.spread(|measures| measures.attainment).mean;
        let cost = entry.spread(|measures| measures.gpu_hours).mean;
        let close = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
        assert_eq!(overall.scenarios, 2);
        assert!(close(overall.attainment, 0.75 * attained), "{overall:?}");
        assert_eq!(overall.worst.scenario, "tiny");
        assert!(close(overall.gpu_hours, 1.1 * cost), "{overall:?}");
        assert!(close(overall.of_least, cost / small.least()), "{overall:?}");
        // Only one of the two has a budget.
        assert_eq!(overall.budget_violation_seconds, Some(30.0));
    }
    assert!(all[0].attainment >= all[1].attainment);
}

#[test]
fn a_policy_that_ran_in_fewer_scenarios_comes_last() {
    let mut rows = two_scenarios(&["static:1", "static:6"]);
    rows.retain(|_, row| row.policy != "static:6" || row.scenario != "tiny");
    let all = Overall::all(&Group::all(&rows));
    let order: Vec<(&str, usize)> = all
        .iter()
        .map(|overall| (overall.policy.as_str(), overall.scenarios))
        .collect();
    assert_eq!(order, [("static:1", 2), ("static:6", 1)]);
}

#[test]
fn the_summary_and_the_page_have_the_overview_and_a_part_for_each_scenario() {
    let rows = two_scenarios(&["coppice", "static:6"]);
    let text = summary::render(&rows).unwrap();
    assert_eq!(text, summary::render(&rows).unwrap());
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["format"], "coppice-scaling/1");
    let names: Vec<&str> = value["scenarios"]
        .as_array()
        .unwrap()
        .iter()
        .map(|scenario| scenario["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["small", "tiny"]);
    assert_eq!(value["overview"].as_array().unwrap().len(), 2);
    let [without, with] = [0, 1].map(|index| &value["scenarios"][index]["policies"][0]);
    assert!(without["budget_violation_seconds"].is_null(), "{without}");
    assert_eq!(with["budget_violation_seconds"], 30.0);
    assert_eq!(without["seeds"], serde_json::json!([1, 2]));
    let against = &value["scenarios"][0]["coppice_against"][0];
    assert_eq!(against["policy"], "static:6");
    assert!(against["gpu_hours_percent"]["low"].is_f64(), "{against}");
    let page = page::render(&rows);
    for part in ["<h2>All scenarios</h2>", "<h2>small</h2>", "<h2>tiny</h2>"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(text::render(&rows).contains("all scenarios:"));
}

#[test]
fn the_scenario_whose_trace_is_not_passed_on_names_the_file_that_is_missing() {
    let text = include_str!("scenarios/r2.toml");
    let scenario = Scenario::parse("r2", text, Overrides::default()).unwrap();
    let error = anyhow::Error::from(scenario.instance(1).map(|_| ()).unwrap_err());
    let error = format!("{error:#}");
    assert!(error.contains("AzureLLMInferenceTrace_code.csv"), "{error}");
}

#[test]
fn a_scenario_of_nonsense_names_the_field() {
    let refusal = |from: &str, to: &str| {
        let text = SMALL.replace(from, to);
        assert_ne!(text, SMALL);
        let scenario = Scenario::parse("small", &text, Overrides::default());
        let error = match scenario {
            Err(error) => anyhow::Error::from(error),
            Ok(scenario) => scenario.instance(1).map(|_| ()).unwrap_err().into(),
        };
        format!("{error:#}")
    };
    assert!(refusal("min = 1", "minimum = 1").contains("minimum"));
    assert!(refusal("llama-3.1-8b-fp8_h200_tp1", "llama").contains("no engine profile is named"));
    assert!(refusal("initial = 1", "initial = 9").contains("initial is 9"));
    assert!(refusal("max = 6", "max = 0").contains("min 1 is above max 0"));
    assert!(refusal("\"aggregated\"", "\"decode\"").contains("give one role of stage aggregated"));
    assert!(refusal("[timing]", "routing = \"central:0\"\n[timing]").contains("unknown field"));
    assert!(
        refusal(
            "name = \"small\"",
            "name = \"small\"\nrouting = \"central:0\""
        )
        .contains("at least 1")
    );
    assert!(
        refusal("name = \"small\"", "name = \"small\"\nrouting = \"fair\"")
            .contains("least-loaded")
    );
}

/// [`SMALL`] with lines before its timing.
fn small_with(lines: &str) -> Scenario {
    let text = SMALL.replace("[timing]", &format!("{lines}\n[timing]"));
    Scenario::parse("small", &text, Overrides::default()).unwrap()
}

#[test]
fn a_fault_that_is_none_names_the_field() {
    let refusal = |fault: &str| {
        let text = SMALL.replace("[timing]", &format!("[[fault]]\n{fault}\n[timing]"));
        let error = match Scenario::parse("small", &text, Overrides::default()) {
            Err(error) => anyhow::Error::from(error),
            Ok(scenario) => scenario.instance(1).map(|_| ()).unwrap_err().into(),
        };
        format!("{error:#}")
    };
    let unknown = refusal("at = \"1m\"\nkind = \"flood\"");
    assert!(unknown.contains("units-die"), "{unknown}");
    let missing = refusal("at = \"1m\"\nkind = \"metrics-lost\"");
    assert!(missing.contains("for"), "{missing}");
    let strange = refusal("at = \"1m\"\nkind = \"units-die\"\nshare = 0.5\ngpus = 4");
    assert!(strange.contains("gpus"), "{strange}");
    let much = refusal("at = \"1m\"\nkind = \"units-die\"\nshare = 2.0");
    assert!(much.contains("fault 1: share is 2"), "{much}");
    let late = refusal("at = \"5m\"\nkind = \"units-die\"\nshare = 0.5");
    assert!(late.contains("when the run is over, at 5m"), "{late}");
}

#[test]
fn faults_of_a_file_happen_to_every_policy() {
    let faulty = small_with("[[fault]]\nat = \"3m\"\nkind = \"units-die\"\nshare = 1.0");
    assert_ne!(faulty.digest, small().digest);
    let cells = all_cells(&["static:6", "coppice"], 1);
    let mut rows = Vec::new();
    cells::run(&cells, &[faulty], 2, |row| {
        rows.push(row);
        Ok(())
    })
    .unwrap();
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert!(row.measures.aborted > 0, "{}", row.policy);
    }
    let without = run(&cells, 2);
    assert!(without.values().all(|row| row.measures.aborted == 0));
}

#[test]
fn a_scenario_like_another_has_its_load_and_world_and_its_own_faults() {
    let built_in = |name: &str| {
        let text = builtin::find(name).unwrap();
        Scenario::parse(name, text, Overrides::default()).unwrap()
    };
    let step = built_in("s1");
    let base = step.instance(1).unwrap();
    assert_eq!(base.faults.iter().count(), 0);
    for name in ["f1", "f1-node", "f2", "f2-frozen", "f3", "f4"] {
        let scenario = built_in(name);
        let own = scenario.instance(1).unwrap();
        assert_eq!(own.schedule_digest, base.schedule_digest, "{name}");
        assert_eq!(own.world.timing, base.world.timing, "{name}");
        assert_eq!(own.faults.iter().count(), 1, "{name}");
        assert_ne!(scenario.digest, step.digest, "{name}");
    }
    let refusal = |text: &str| {
        let error = Scenario::parse("other", text, Overrides::default()).unwrap_err();
        format!("{error:#}")
    };
    assert!(refusal("like = \"s9\"\nname = \"x\"").contains("like is \"s9\""));
    assert!(refusal("like = \"f1\"\nname = \"x\"").contains("itself like another"));
    assert!(refusal("like = \"s1\"\nname = \"x\"\nrolls = 1").contains("rolls"));
}

#[test]
fn the_command_line_changes_load_length_and_start_up() {
    let overrides = Overrides {
        start_up: Some(Duration::from_secs(240)),
        rate_scale: Some(0.5),
        duration: Some(Duration::from_secs(60)),
    };
    let scenario = Scenario::parse("small", SMALL, overrides).unwrap();
    let instance = scenario.instance(1).unwrap();
    assert_eq!(instance.duration, Duration::from_secs(60));
    // 2.5 a second for a minute.
    assert!(
        (90..220).contains(&instance.requests.len()),
        "{}",
        instance.requests.len()
    );
    assert_eq!(
        instance.world.timing.load.typical(),
        Duration::from_secs(240)
    );
    assert_ne!(scenario.digest, small().digest);
    assert_eq!(scenario.name(), "small, start-up 4m, x0.5, for 1m");
}

/// The simulation judges requests by the same limits as the driver.
#[test]
fn driver_and_simulation_judge_alike() {
    let instance = small().instance(1).unwrap();
    let driven = Driven {
        ttft: Some("1s+0.5ms/token".parse().unwrap()),
        itl: Some("50ms".parse().unwrap()),
    };
    let ms = Duration::from_millis;
    for input_tokens in [1, 1_000, 50_000] {
        for ttft in [ms(1), ms(1_000), ms(1_500), ms(1_501), ms(26_001)] {
            for (output_tokens, gap) in [(1, None), (11, Some(ms(50))), (11, Some(ms(51)))] {
                let request = Request {
                    at: ms(500),
                    input_tokens,
                    output_tokens,
                    cached_tokens: 0,
                };
                let first = request.at + ttft;
                let ended = Ended {
                    first: Some(first),
                    at: Some(first + gap.unwrap_or_default() * (output_tokens - 1)),
                    fate: Fate::Finished,
                };
                let simulated = instance.world.objectives.judge(&request, &ended);
                let met = driven.judge(input_tokens, ttft, gap);
                assert_eq!(
                    (simulated.ttft, simulated.itl),
                    (met.ttft, met.itl),
                    "{request:?} {ended:?}"
                );
            }
        }
    }
}

#[test]
fn rows_of_one_cell_replace_each_other() {
    let rows = run(&all_cells(&["static:2"], 1), 1);
    let row: &Row = rows.values().next().unwrap();
    let mut twice = rows.clone();
    twice.insert(row.key(), row.clone());
    assert_eq!(twice.len(), 1);
}

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: super::command::Args,
}

/// Runs the command as it is typed.
async fn typed(words: &[&str]) -> anyhow::Result<std::process::ExitCode> {
    let words = std::iter::once("simulate").chain(words.iter().copied());
    let cli = <Cli as clap::Parser>::try_parse_from(words)?;
    super::command::run(cli.args).await
}

#[tokio::test]
async fn shards_put_together_are_the_whole_and_a_resumed_batch_runs_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (scenario, whole, merged) = (path("small.toml"), path("whole.jsonl"), path("all.jsonl"));
    std::fs::write(&scenario, SMALL).unwrap();
    let common = [
        scenario.as_str(),
        "--policy=coppice,best-static,static:2",
        "--seeds=2",
        "--progress=none",
    ];
    let with = |more: &[&str]| -> Vec<String> {
        let words = common.iter().chain(more);
        words.map(|word| (*word).to_owned()).collect()
    };
    let run = async |words: Vec<String>| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        typed(&words).await.unwrap()
    };
    run(with(&["--output", &whole])).await;
    let rows = row::read(whole.as_ref()).unwrap();
    assert_eq!(rows.len(), 6);
    assert!(
        rows.values()
            .any(|row| row.policy == "best-static" && row.resolved != "best-static")
    );
    let (first, second) = (path("1.jsonl"), path("2.jsonl"));
    run(with(&["--shard=1/2", "--output", &first])).await;
    run(with(&["--shard=2/2", "--output", &second])).await;
    assert_eq!(row::read(first.as_ref()).unwrap().len(), 3);
    let page = path("page.html");
    let words = [
        "--merge", &first, &second, "--output", &merged, "--html", &page,
    ];
    typed(&words).await.unwrap();
    assert_eq!(row::read(merged.as_ref()).unwrap(), rows);
    assert!(std::fs::read_to_string(&page).unwrap().contains("coppice"));
    // What is there is taken from the file, whatever it says, and not run again.
    let mark = |row: &Row| Row {
        schedule_digest: "kept".to_owned(),
        ..row.clone()
    };
    let kept: Rows = row::read(first.as_ref())
        .unwrap()
        .values()
        .map(|row| (row.key(), mark(row)))
        .collect();
    drop(Lines::create(whole.as_ref(), &kept).unwrap());
    run(with(&["--resume", "--output", &whole])).await;
    let resumed = row::read(whole.as_ref()).unwrap();
    assert_eq!(resumed.len(), 6);
    for (key, row) in &resumed {
        match kept.get(key) {
            Some(kept) => assert_eq!(row, kept),
            None => assert_eq!(row, &rows[key]),
        }
    }
}

#[tokio::test]
async fn what_is_asked_for_in_vain_is_an_error() {
    let refusal = async |words: &[&str]| format!("{:#}", typed(words).await.unwrap_err());
    assert!(refusal(&[]).await.contains("give a scenario file"));
    assert!(
        refusal(&["--builtin=s9"])
            .await
            .contains("there are s1, s2")
    );
    let pool_only = [
        "--builtin=s2",
        "--policy=wva1",
        "--seeds=1",
        "--progress=none",
    ];
    assert!(refusal(&pool_only).await.contains("is for one pool"));
    assert!(
        refusal(&["--builtin=s2", "--policy=hpa", "--progress=none"])
            .await
            .contains("is not known")
    );
    assert!(
        refusal(&["--merge=a", "--policy=coppice"])
            .await
            .contains("cannot be used with")
    );
}
