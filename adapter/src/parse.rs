//! `parse`: what a server's exposition would be served as, without a server or a cluster.
//!
//! It goes through the collector as if it had been scraped from one pod. Rates and latencies need a second exposition.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use coppice_signals::{Metric, Query, Selection, Settings, Signals, StaticTarget};
use jiff::{SignedDuration, Timestamp};

use crate::metrics::Measured;
use crate::quantity::quantity;
use crate::settings::ParseArgs;

/// Reads the files and renders what they say.
///
/// # Errors
/// A file cannot be read, or is no exposition.
pub(crate) fn parse(args: &ParseArgs) -> anyhow::Result<String> {
    let first = read(&args.file)?;
    let second = match (&args.then, args.after) {
        (Some(path), Some(after)) => Some((read(path)?, SignedDuration::try_from(after)?)),
        _ => None,
    };
    let signals = collector(second.as_ref().map(|(_, after)| *after))?;
    let begin = signals.now();
    let take_in = |body: &[u8], at, path: &Path| {
        signals
            .ingest(&Selection::default(), body, at)
            .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))
    };
    take_in(&first, begin, &args.file)?;
    let mut now = begin;
    if let (Some((body, after)), Some(path)) = (&second, &args.then) {
        now = begin.checked_add(*after).context("--after is too long")?;
        take_in(body, now, path)?;
    }
    Ok(render(&signals, now))
}

/// Where the exposition is taken to come from.
const NAMESPACE: &str = "default";

fn collector(span: Option<SignedDuration>) -> anyhow::Result<Signals> {
    let mut settings = Settings::default();
    if let Some(span) = span {
        // Both samples lie in one window, and the first is not stale beside the second.
        let span = std::time::Duration::try_from(span)?;
        settings.interval = settings.interval.max(span);
        settings.window = settings.window.max(span * 2);
        settings.stale_after = Some(span * 2);
    }
    let signals = Signals::new(settings, Measured::new().signals)?;
    let target = StaticTarget {
        namespace: NAMESPACE.to_owned(),
        name: "file".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        path: "/metrics".to_owned(),
        labels: BTreeMap::new(),
    };
    signals.set_static_targets("parse", vec![target]);
    Ok(signals)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin()
            .read_to_end(&mut bytes)
            .context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes)
}

fn render(signals: &Signals, now: Timestamp) -> String {
    let mut text = String::new();
    for endpoint in signals.endpoints(&Selection::default(), now) {
        let server = endpoint.server.unwrap_or_else(|| "unknown".to_owned());
        text.push_str(&format!("server   {server}\n"));
        if let Some(role) = endpoint.role {
            text.push_str(&format!("role     {role}\n"));
        }
        if !endpoint.models.is_empty() {
            text.push_str(&format!("models   {}\n", endpoint.models.join(", ")));
        }
        text.push_str(&format!("series   {} kept\n\n", endpoint.series));
    }
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(["METRIC", "VALUE", "SENT AS", "MISSING"]);
    for metric in Metric::all() {
        let name = metric.to_string();
        let query = Query {
            metric,
            selection: Selection {
                namespace: Some(NAMESPACE.to_owned()),
                ..Selection::default()
            },
            window: None,
        };
        match signals.query(&query, now) {
            Ok(answer) => table.add_row([
                name,
                answer.value.to_string(),
                quantity(answer.value).map_or_else(String::new, |quantity| quantity.text),
                String::new(),
            ]),
            Err(missing) => {
                table.add_row([name, "-".to_owned(), "-".to_owned(), missing.to_string()])
            }
        };
    }
    text.push_str(&table.trim_fmt());
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn body(tokens: u32) -> String {
        format!(
            "vllm:num_requests_running{{model_name=\"org/m\"}} 4\n\
             vllm:num_requests_waiting{{model_name=\"org/m\"}} 7\n\
             # TYPE vllm:generation_tokens counter\n\
             vllm:generation_tokens_total{{model_name=\"org/m\"}} {tokens}\n"
        )
    }

    /// The value and the reason of a metric's row.
    fn row(text: &str, metric: &str) -> String {
        let found = text
            .lines()
            .find(|line| line.trim_start().starts_with(metric));
        found
            .unwrap_or_else(|| panic!("{metric} is not in\n{text}"))
            .to_owned()
    }

    #[test]
    fn one_exposition_shows_gauges_and_says_what_more_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metrics.txt");
        std::fs::write(&file, body(100)).unwrap();
        let text = parse(&ParseArgs {
            file,
            then: None,
            after: None,
        })
        .unwrap();
        assert!(text.starts_with("server   vllm\n"), "{text}");
        assert!(text.contains("models   org/m\n"), "{text}");
        assert!(
            row(&text, "coppice_requests_waiting").contains(" 7 "),
            "{text}"
        );
        let rate = row(&text, "coppice_output_tokens_per_second");
        assert!(rate.contains("two are needed"), "{rate}");
    }

    #[test]
    fn two_expositions_show_rates() {
        let folder = tempfile::tempdir().unwrap();
        let (file, then) = (folder.path().join("0"), folder.path().join("1"));
        std::fs::write(&file, body(100)).unwrap();
        std::fs::write(&then, body(400)).unwrap();
        let text = parse(&ParseArgs {
            file,
            then: Some(then),
            after: Some(Duration::from_secs(120)),
        })
        .unwrap();
        let rate = row(&text, "coppice_output_tokens_per_second");
        assert!(rate.contains(" 2.5 ") && rate.contains(" 2500m"), "{rate}");
    }

    #[test]
    fn what_is_no_exposition_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("page.html");
        std::fs::write(&file, "<html><body>Not found</body></html>").unwrap();
        let args = ParseArgs {
            file,
            then: None,
            after: None,
        };
        let error = parse(&args).unwrap_err().to_string();
        assert!(error.contains("page.html: "), "{error}");
    }
}
