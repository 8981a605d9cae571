//! The table of engines, signals and series, for people.

use std::fmt::{self, Write};

use super::model::{Engine, Fold, LabelTest, Mark, Reading, Role, Sign, Source, Term, Tier};
use super::{ENGINES, Signal};

/// Every built-in server, how it is recognised, and which of its series make up which signal, as Markdown.
///
/// What `docs/engines.md` holds: `cargo run -p coppice-signals --example engines > docs/engines.md`.
#[must_use]
pub fn table() -> String {
    let mut text = String::new();
    write_table(&mut text).expect("a text takes whatever is written to it");
    text
}

fn write_table(text: &mut String) -> fmt::Result {
    text.push_str(HEAD);
    overview(text)?;
    for engine in ENGINES {
        section(text, engine)?;
    }
    text.write_str(TAIL)
}

const HEAD: &str = "\
# Inference servers and their signals

Written by `cargo run -p coppice-signals --example engines > docs/engines.md` from `adapter/signals/src/engines/`; a test
compares the two.

A server is recognised by the names in its body, again after a restart and whenever nothing that was needed is there any
more. Of several sources the first that is in the body holds. A signal that a server does not expose is missing, with the
reason; it is never zero.

- `name` with labels in braces selects series; `a + b` adds, `a × b` and `a ÷ b` are taken for each model; `?` may be absent.
- *late*: the series appears with its first event. Until then it counts as zero where other endpoints have it.
- *at finish*: moves only when a request ends, so that it lags and comes in lumps.
- Counters are read as growth over the window, series by series, from zero after a restart.

";

const TAIL: &str = "\
## Servers of your own

A `Mapping` names a server, one or two series (or beginnings of series) that it is recognised by, and for each signal the series,
labels, aggregation (`sum`, `max`, `mean`) and unit (`count`, `share`, `percent`, `seconds`, `milliseconds`, `microseconds`).
It comes before what is built in, and built-in rules fill what it does not map.
";

fn overview(text: &mut String) -> fmt::Result {
    text.push_str("| signal |");
    for engine in ENGINES {
        write!(text, " {} |", engine.name)?;
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(ENGINES.len()));
    text.push('\n');
    for signal in Signal::ALL {
        write!(text, "| {signal} |")?;
        for engine in ENGINES {
            let has = engine.rules.iter().any(|rule| rule.signal == signal);
            text.push_str(if has { " x |" } else { " |" });
        }
        text.push('\n');
    }
    text.write_char('\n')
}

fn section(text: &mut String, engine: &Engine) -> fmt::Result {
    let tier = match engine.tier {
        Tier::Engine => "engine",
        Tier::Worker => "wrapper of an engine",
        Tier::Frontend => "stands before engines",
    };
    write!(
        text,
        "## {}\n\n{} · {tier} · {}. Recognised by {}",
        engine.name,
        engine.versions,
        engine.place,
        marks(engine.marks)
    )?;
    for spelling in engine.spellings {
        let others: Vec<_> = spelling.others.iter().map(|other| quote(other)).collect();
        write!(
            text,
            "; {} may be spelled {}",
            quote(spelling.rule),
            others.join(" or ")
        )?;
    }
    write!(text, ".\n{}\n\n", engine.note)?;
    if engine.rules.is_empty() {
        return Ok(());
    }
    text.push_str("| signal | series | versions | |\n|---|---|---|---|\n");
    for rule in engine.rules {
        for (index, source) in rule.sources.iter().enumerate() {
            let name = if index == 0 {
                rule.signal.name()
            } else {
                "… else"
            };
            let versions = if source.versions.is_empty() {
                "all"
            } else {
                source.versions
            };
            writeln!(
                text,
                "| {name} | {} | {versions} | {} |",
                series(source),
                timing(source, engine)
            )?;
        }
    }
    text.write_char('\n')
}

fn quote(text: &str) -> String {
    if text.is_empty() {
        "without".to_owned()
    } else {
        format!("`{text}`")
    }
}

fn marks(marks: &[Mark]) -> String {
    let sign = |sign: Sign| match sign {
        Sign::Prefix(prefix) => format!("`{prefix}*`"),
        Sign::Name(name) => format!("`{name}`"),
        Sign::Label(name, label) => format!("`{name}{{{label}}}`"),
    };
    let texts: Vec<_> = marks
        .iter()
        .map(|mark| {
            let with = mark
                .with
                .map_or_else(String::new, |with| format!(" with {}", sign(with)));
            let without = mark
                .without
                .map_or_else(String::new, |without| format!(" without {}", sign(without)));
            format!("{}{with}{without}", sign(mark.sign))
        })
        .collect();
    texts.join(", ")
}

fn timing(source: &Source, engine: &Engine) -> String {
    let mut words = Vec::new();
    if source.at_finish {
        words.push("at finish");
    }
    if source.late || engine.appears_late {
        words.push("late");
    }
    words.join(", ")
}

fn series(source: &Source) -> String {
    let mut text = String::new();
    for (index, term) in source.terms.iter().enumerate() {
        let sign = match term.role {
            Role::Add if index == 0 => "",
            Role::Add => " + ",
            Role::Subtract => " − ",
            Role::Factor => " × ",
            Role::Divisor => " ÷ ",
            Role::DivisorOfEach => " ÷ number of these ÷ ",
        };
        text.push_str(sign);
        text.push_str(&one(term));
    }
    text
}

fn one(term: &Term) -> String {
    let labels: Vec<_> = term
        .labels
        .iter()
        .map(|(label, test)| match test {
            LabelTest::Is(value) => format!("{label}=\"{value}\""),
            LabelTest::OneOf(values) => format!("{label}={}", list(values)),
            LabelTest::NoneOf(values) => format!("{label}≠{}", list(values)),
        })
        .collect();
    let braces = if labels.is_empty() {
        String::new()
    } else {
        format!("{{{}}}", labels.join(","))
    };
    let name = format!("`{}{braces}`", term.name);
    let mut text = match term.reading {
        Reading::Gauge | Reading::Ratio | Reading::Counter => name,
        Reading::Histogram { buckets: true } => format!("{name} (histogram)"),
        Reading::Histogram { buckets: false } => format!("{name} (mean)"),
        Reading::Mean { count } => format!("{name} over `{count}{braces}`"),
        Reading::Labels(lists) => {
            let lists: Vec<_> = lists
                .iter()
                .map(|labels| {
                    let labels: Vec<_> = labels.iter().map(|label| quote(label)).collect();
                    labels.join(" × ")
                })
                .collect();
            format!("{name}, label {}", lists.join(" or "))
        }
        Reading::Newest { label, names: true } => {
            format!("{name} with the greatest value, number of names in label `{label}`")
        }
        Reading::Newest {
            label,
            names: false,
        } => format!("{name} with the greatest value, label `{label}`"),
    };
    if (term.scale - 1.0).abs() > f64::EPSILON {
        text.push_str(&format!(" × {}", term.scale));
    }
    match term.fold {
        Fold::Sum => {}
        Fold::Max => text.push_str(" (greatest)"),
        Fold::Mean => text.push_str(" (mean)"),
    }
    if term.optional {
        text.push('?');
    }
    text
}

fn list(values: &[&str]) -> String {
    let values: Vec<_> = values.iter().map(|value| format!("\"{value}\"")).collect();
    values.join("/")
}
