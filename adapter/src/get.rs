//! `get`: asks the running adapter, through the API server, for a metric and how it came about.

use anyhow::{Context, bail};
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use coppice_runtime::client;

use crate::groups::Api;
use crate::route::{EXPLAIN, encode};
use crate::settings::GetArgs;
use crate::wanted;
use crate::wire::{Explanation, ExternalMetricValueList};

/// Fetches and renders the answer.
///
/// # Errors
/// When the adapter or the API server refuses, and when the metric has no value: the text says why, endpoint by endpoint.
pub(crate) async fn get(args: &GetArgs, kube: &client::KubeArgs) -> anyhow::Result<String> {
    let client = client::connect(kube).await?;
    let namespace = args
        .namespace
        .clone()
        .unwrap_or_else(|| client.default_namespace().to_owned());
    let base = format!(
        "{}/namespaces/{}/{}",
        Api::External.path(),
        encode(&namespace),
        encode(&args.metric)
    );
    let query = format!("labelSelector={}", encode(&args.selector));
    if args.metric.eq_ignore_ascii_case(wanted::METRIC) {
        let list: ExternalMetricValueList = fetch(&client, &format!("{base}?{query}")).await?;
        return if args.json {
            Ok(serde_json::to_string_pretty(&list)?)
        } else {
            Ok(render_values(&list))
        };
    }
    let explanation: Explanation = fetch(&client, &format!("{base}/{EXPLAIN}?{query}")).await?;
    let text = if args.json {
        serde_json::to_string_pretty(&explanation)?
    } else {
        render(&explanation)
    };
    if explanation.answer.is_none() && !args.json {
        bail!("{text}");
    }
    Ok(text)
}

async fn fetch<T: serde::de::DeserializeOwned>(
    client: &kube::Client,
    path: &str,
) -> anyhow::Result<T> {
    let request = http::Request::get(path)
        .body(Vec::new())
        .context("the metric's name cannot be in a path")?;
    client
        .request(request)
        .await
        .map_err(|error| anyhow::anyhow!(error))
}

fn render_values(list: &ExternalMetricValueList) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(["METRIC", "VALUE", "MEASURED", "LABELS"]);
    for item in &list.items {
        table.add_row([
            item.metric_name.clone(),
            item.value.clone(),
            item.timestamp.to_string(),
            labels(&item.metric_labels),
        ]);
    }
    table.trim_fmt()
}

fn render(explanation: &Explanation) -> String {
    let mut text = format!(
        "{} in namespace {}",
        explanation.metric, explanation.namespace
    );
    if !explanation.selector.is_empty() {
        text.push_str(&format!(", {}", explanation.selector));
    }
    text.push('\n');
    if let Some(answer) = &explanation.answer {
        text.push_str(&format!(
            "value      {} (sent as {})\n",
            answer.value, answer.quantity
        ));
        text.push_str(&format!("age        {}\n", seconds(answer.age_seconds)));
        if let Some(window) = answer.window_seconds {
            text.push_str(&format!("window     {}\n", seconds(window)));
        }
        text.push_str(&format!("rule       {}\n", answer.rule));
        text.push_str(&format!(
            "endpoints  {} of {} contribute\n",
            answer.contributing, answer.live
        ));
        if !answer.labels.is_empty() {
            text.push_str(&format!("labels     {}\n", labels(&answer.labels)));
        }
        for warning in &answer.warnings {
            text.push_str(&format!("warning    {warning}\n"));
        }
    }
    if let Some(missing) = &explanation.missing {
        text.push_str(&format!("no value   {missing}\n"));
    }
    if !explanation.endpoints.is_empty() {
        let mut table = Table::new();
        table
            .load_style(NOTHING)
            .set_header(["ENDPOINT", "VALUE", "AGE", "MISSING"]);
        for endpoint in &explanation.endpoints {
            table.add_row([
                endpoint.pod.clone(),
                endpoint
                    .value
                    .map_or_else(|| "-".to_owned(), |value| value.to_string()),
                endpoint.age_seconds.map_or_else(|| "-".to_owned(), seconds),
                endpoint.missing.clone().unwrap_or_default(),
            ]);
        }
        text.push('\n');
        text.push_str(&table.trim_fmt());
    }
    text
}

fn seconds(count: f64) -> String {
    format!("{count:.1} s")
}

fn labels(labels: &std::collections::BTreeMap<String, String>) -> String {
    labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ExplainedAnswer, ExplainedEndpoint};

    #[test]
    fn an_explanation_shows_value_rule_and_each_endpoint() {
        let explanation = Explanation {
            metric: "coppice_requests_waiting".into(),
            namespace: "serving".into(),
            selector: "app=vllm".into(),
            answer: Some(ExplainedAnswer {
                value: 12.5,
                quantity: "12500m".into(),
                age_seconds: 3.04,
                window_seconds: None,
                rule: "sum, scaled up for missing endpoints".into(),
                contributing: 4,
                live: 5,
                labels: [("model".to_owned(), "qwen3".to_owned())].into(),
                warnings: vec!["1 of 5 endpoints is missing".into()],
            }),
            missing: None,
            endpoints: vec![
                ExplainedEndpoint {
                    pod: "serving/a".into(),
                    value: Some(2.0),
                    age_seconds: Some(1.0),
                    missing: None,
                },
                ExplainedEndpoint {
                    pod: "serving/b".into(),
                    value: None,
                    age_seconds: None,
                    missing: Some("not scraped yet".into()),
                },
            ],
        };
        let expected = "\
coppice_requests_waiting in namespace serving, app=vllm
value      12.5 (sent as 12500m)
age        3.0 s
rule       sum, scaled up for missing endpoints
endpoints  4 of 5 contribute
labels     model=qwen3
warning    1 of 5 endpoints is missing

 ENDPOINT   VALUE  AGE    MISSING
 serving/a  2      1.0 s
 serving/b  -      -      not scraped yet";
        assert_eq!(render(&explanation), expected);
    }
}
