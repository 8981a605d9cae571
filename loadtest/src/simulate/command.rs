//! The sub-command's arguments and entry point.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use coppice_simulation::policy::{OF_ONE_POOL, OF_PREFILL_AND_DECODE, Spec, SpecError};

use super::builtin;
use super::cells::{self, Cell, Entrant, Shard};
use super::page;
use super::progress::Display;
use super::row::{self, Lines, Rows};
use super::scenario::{Overrides, Scenario};
use super::summary;
use super::sweep::{self, Found, Goal};
use super::text;
use crate::drive::progress::ProgressKind;
use crate::schedule::span::Span;

const BEST: &str = "best-static";
const PEAK: &str = text::PEAK;
const PEAK_AND_MORE: &str = "peak-static-x1.3";
/// How much more than the peak [`PEAK_AND_MORE`] has.
const MORE: f64 = 1.3;
/// More seeds than a comparison needs.
const MOST_SEEDS: u64 = 10_000;

/// Arguments of `coppice-loadtest simulate`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Scenario files (TOML); see loadtest/src/simulate/scenarios for those that are built in.
    #[arg(value_name = "SCENARIO.toml")]
    scenarios: Vec<PathBuf>,
    /// Built-in scenarios: s1 to s5, r1, r3, r3-hits, m1 to m4, f1 to f4, f1-node, f2-frozen, or all.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    builtin: Vec<String>,
    /// Print the built-in scenarios and what they are for.
    #[arg(long, exclusive = true)]
    list: bool,
    /// Policies: coppice, coppice:0.99, static:4, static:2+3, best-static, peak-static, peak-static-x1.3, hpa-queue:5, hpa-kv:0.8, hpa-load:0.8,
    /// token-aware:1.5, slo-aware, wva1, wva2, dynamo, dynamo-load, dynamo-throughput, dynamo-kalman, apa:0.5, kpa:0.5, kthena:0.8, rbg:0.8, heteroscale, tokenscale
    /// [default: all that the scenario allows].
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    policy: Vec<String>,
    /// How many seeds, from 1 on; every policy runs with the same draws of each.
    #[arg(long, default_value_t = 3, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=MOST_SEEDS))]
    seeds: u64,
    /// Cells that run at once [default: as many as there are processors].
    #[arg(long, value_name = "COUNT")]
    jobs: Option<usize>,
    /// What best-static has to attain with the first seed; peak-static keeps every minute at 0.9.
    #[arg(long, default_value_t = 0.99, value_name = "SHARE", value_parser = share)]
    target: f64,
    /// Median time that an engine takes to load, instead of the scenario's.
    #[arg(long, value_name = "DURATION")]
    start_up: Option<Span>,
    /// Multiply every stream's rate.
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    rate_scale: Option<f64>,
    /// Length of every stream, instead of the scenario's.
    #[arg(long, value_name = "DURATION")]
    duration: Option<Span>,
    /// Write one line of JSON for each cell here.
    #[arg(long, short, value_name = "FILE.jsonl")]
    output: Option<PathBuf>,
    /// Keep the cells that --output holds already, and run the others.
    #[arg(long, requires = "output")]
    resume: bool,
    /// Run only one part of the cells, such as 2/4.
    #[arg(long, value_name = "INDEX/COUNT")]
    shard: Option<Shard>,
    /// Run nothing: put files of results together, into --output where it is given.
    #[arg(long, value_name = "FILE.jsonl", num_args = 1.., conflicts_with_all = ["scenarios", "builtin", "policy", "resume", "shard"])]
    merge: Vec<PathBuf>,
    /// Write a page with frontiers here.
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Write means, intervals and differences here, as one JSON object.
    #[arg(long, value_name = "FILE.json")]
    summary: Option<PathBuf>,
    /// How progress is shown.
    #[arg(long, value_enum, default_value_t)]
    progress: ProgressKind,
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if value > 0.0 && value <= 1.0 {
        Ok(value)
    } else {
        Err("give a share above 0 and up to 1, such as 0.99".to_owned())
    }
}

fn factor(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if value > 0.0 && value <= 100_000.0 {
        Ok(value)
    } else {
        Err("give a factor above 0 and up to 100000".to_owned())
    }
}

/// Runs the sub-command; the exit code is the process's.
///
/// # Errors
/// What kept it from running, with its causes.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Threads of its own: the runtime's have other things to do.
    tokio::task::spawn_blocking(move || batch(&args))
        .await
        .context("the simulation broke off")?
}

fn batch(args: &Args) -> anyhow::Result<ExitCode> {
    if args.list {
        return list();
    }
    let rows = if args.merge.is_empty() {
        simulate(args)?
    } else {
        let mut rows = Rows::new();
        for path in &args.merge {
            rows.extend(row::read(path)?);
        }
        if let Some(output) = &args.output {
            Lines::create(output, &rows)?;
        }
        rows
    };
    if rows.is_empty() {
        bail!("there are no results: the shard holds no cell, or the merged files are empty");
    }
    print(&text::render(&rows));
    if let Some(path) = &args.summary {
        std::fs::write(path, summary::render(&rows)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &args.html {
        std::fs::write(path, page::render(&rows))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list() -> anyhow::Result<ExitCode> {
    for name in builtin::names() {
        let text = builtin::find(name).unwrap_or_default();
        let scenario = Scenario::parse(name, text, Overrides::default())?;
        print(&format!("{name:8} {}\n", scenario.written.about));
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "the program's output")]
fn print(text: &str) {
    print!("{text}");
}

/// Runs the cells that are asked for and not there yet; answers all of them.
fn simulate(args: &Args) -> anyhow::Result<Rows> {
    let scenarios = read_scenarios(args)?;
    let cells = cells(args, &scenarios)?;
    let mut rows = Rows::new();
    if let Some(path) = args
        .output
        .as_deref()
        .filter(|path| args.resume && path.exists())
    {
        rows = row::read(path)?;
    }
    let due: Vec<Cell> = cells
        .into_iter()
        .filter(|cell| !rows.contains_key(&cell.key(&scenarios)))
        .collect();
    let mut lines = match &args.output {
        Some(path) => Some(Lines::create(path, &rows)?),
        None => None,
    };
    let jobs = match args.jobs {
        Some(jobs) => jobs,
        None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    let mut display = Display::new(args.progress, due.len());
    cells::run(&due, &scenarios, jobs, |row| {
        if let Some(lines) = &mut lines {
            lines.add(&row)?;
        }
        display.done(&format!(
            "{}, {}, seed {}",
            row.scenario, row.policy, row.seed
        ));
        rows.insert(row.key(), row);
        Ok(())
    })?;
    display.finish();
    Ok(rows)
}

fn read_scenarios(args: &Args) -> anyhow::Result<Vec<Scenario>> {
    let overrides = Overrides {
        start_up: args.start_up.map(|span| span.0),
        rate_scale: args.rate_scale,
        duration: args.duration.map(|span| span.0),
    };
    let mut scenarios = Vec::new();
    for path in &args.scenarios {
        scenarios.push(Scenario::read(path, overrides)?);
    }
    let all = args.builtin.iter().any(|name| name == "all");
    let named: Vec<&str> = if all {
        builtin::names().collect()
    } else {
        args.builtin.iter().map(String::as_str).collect()
    };
    for name in named {
        let Some(text) = builtin::find(name) else {
            let known: Vec<&str> = builtin::names().collect();
            bail!(
                "there is no built-in scenario {name:?}: there are {} and all",
                known.join(", ")
            );
        };
        scenarios.push(Scenario::parse(name, text, overrides)?);
    }
    if scenarios.is_empty() {
        bail!("nothing to simulate: give a scenario file, or --builtin s1");
    }
    Ok(scenarios)
}

/// Every cell of this shard, fleets that know the future looked for.
fn cells(args: &Args, scenarios: &[Scenario]) -> anyhow::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for (index, scenario) in scenarios.iter().enumerate() {
        for entrant in entrants(args, scenario)? {
            for seed in 1..=args.seeds {
                cells.push(Cell {
                    scenario: index,
                    entrant: entrant.clone(),
                    seed,
                });
            }
        }
    }
    if let Some(shard) = args.shard {
        let mut position = 0;
        cells.retain(|_| {
            position += 1;
            shard.has(position - 1)
        });
    }
    Ok(cells)
}

fn entrants(args: &Args, scenario: &Scenario) -> anyhow::Result<Vec<Entrant>> {
    let (law, rivals) = if scenario.is_disaggregated() {
        OF_PREFILL_AND_DECODE.split_at(1)
    } else {
        OF_ONE_POOL.split_at(1)
    };
    let names: Vec<&str> = if args.policy.is_empty() {
        [law, &[BEST, PEAK, PEAK_AND_MORE], rivals].concat()
    } else {
        args.policy.iter().map(String::as_str).collect()
    };
    let fixed = names
        .iter()
        .any(|name| [BEST, PEAK, PEAK_AND_MORE].contains(name));
    let found = if fixed {
        Some(look_for_fixed(args, scenario)?)
    } else {
        None
    };
    let world = scenario.instance(1)?.world;
    let mut entrants = Vec::with_capacity(names.len());
    for name in names {
        let (label, spec) = match (name, &found) {
            (BEST, Some([best, _])) => (label(name, best), Found::spec(best.units.clone())),
            (PEAK, Some([_, peak])) => (label(name, peak), Found::spec(peak.units.clone())),
            (PEAK_AND_MORE, Some([_, peak])) => {
                (label(name, peak), Found::spec(peak.times(MORE, &world)))
            }
            _ => {
                let spec: Spec = name.parse()?;
                (spec.to_string(), spec)
            }
        };
        match spec.build(&world) {
            Ok(_) => entrants.push(Entrant { label, spec }),
            // Asked for with others: it is left out where the rule says nothing.
            Err(SpecError::NotFor { .. }) if args.policy.len() > 1 => {}
            Err(error) => {
                return Err(error).with_context(|| format!("scenario {}", scenario.name()));
            }
        }
    }
    Ok(entrants)
}

fn label(name: &str, found: &Found) -> String {
    if found.reached {
        name.to_owned()
    } else {
        format!("{name}{}", text::MISSED)
    }
}

/// The best static fleet and the static peak, with the draws of the first seed.
fn look_for_fixed(args: &Args, scenario: &Scenario) -> anyhow::Result<[Found; 2]> {
    let instance = scenario.instance(1)?;
    let goals = [Goal::Attainment(args.target), Goal::EveryMinute];
    let found = sweep::smallest(&instance, &goals, 1)?;
    found
        .try_into()
        .map_err(|_| anyhow::anyhow!("one fleet for each goal"))
}
