//! `top`: what each pod is doing, from `custom.metrics.k8s.io`, as autoscalers see it.

use std::collections::BTreeMap;

use anyhow::bail;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use coppice_runtime::client;
use coppice_runtime::telemetry::chain;
use futures::future::join_all;
use kube::Client;
use serde::Deserialize;

use crate::groups::Api;
use crate::route::encode;
use crate::settings::TopArgs;

/// The metrics that are shown, each with the head of its column.
const COLUMNS: [(&str, &str); 6] = [
    ("RUNNING", "coppice_requests_running"),
    ("WAITING", "coppice_requests_waiting"),
    ("KV CACHE", "coppice_kv_cache_usage"),
    ("IN TOKENS/S", "coppice_input_tokens_per_second"),
    ("OUT TOKENS/S", "coppice_output_tokens_per_second"),
    ("TTFT P95", "coppice_ttft_seconds_p95"),
];

/// The part of an answer that is shown.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct List {
    items: Vec<Item>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    described_object: Described,
    value: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Described {
    name: String,
}

/// The values of one metric, or why there are none.
type Column = Result<List, String>;

/// Asks for every column and renders the table.
///
/// # Errors
/// When there is no cluster, and when no column has a value: the text says why of each.
pub(crate) async fn top(args: &TopArgs, kube: &client::KubeArgs) -> anyhow::Result<String> {
    let client = client::connect(kube).await?;
    let namespace = args.namespace.as_deref();
    let namespace = encode(namespace.unwrap_or_else(|| client.default_namespace()));
    let base = format!(
        "{}/namespaces/{namespace}/pods/*",
        Api::CustomV1Beta2.path()
    );
    let query = format!("labelSelector={}", encode(&args.selector));
    let asked = COLUMNS.map(|(_, metric)| fetch(&client, format!("{base}/{metric}?{query}")));
    let columns = join_all(asked).await;
    if columns.iter().all(Result::is_err) {
        bail!("no pod has a value:{}", reasons(&columns));
    }
    Ok(format!("{}{}", render(&columns), reasons(&columns)))
}

async fn fetch(client: &Client, path: String) -> Column {
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(|error| error.to_string())?;
    client
        .request(request)
        .await
        .map_err(|error| chain(&error).to_string())
}

/// A row for each pod that has a value of anything. What a pod has no value of is a dash.
fn render(columns: &[Column]) -> String {
    let mut rows: BTreeMap<&str, [&str; COLUMNS.len()]> = BTreeMap::new();
    for (place, column) in columns.iter().enumerate() {
        for item in column.iter().flat_map(|list| &list.items) {
            let row = rows
                .entry(&item.described_object.name)
                .or_insert(["-"; COLUMNS.len()]);
            row[place] = &item.value;
        }
    }
    let mut table = Table::new();
    let heads = COLUMNS.iter().map(|(head, _)| *head);
    table
        .load_style(NOTHING)
        .set_header(std::iter::once("POD").chain(heads));
    for (pod, values) in rows {
        table.add_row(std::iter::once(pod).chain(values));
    }
    table.trim_fmt()
}

/// A line for each column that has no value at all.
fn reasons(columns: &[Column]) -> String {
    let lacking = COLUMNS.iter().zip(columns);
    lacking
        .filter_map(|((head, _), column)| {
            let reason = column.as_ref().err()?;
            Some(format!("\n{head}: {reason}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(values: &[(&str, &str)]) -> Column {
        let item = |(name, value): &(&str, &str)| Item {
            described_object: Described {
                name: (*name).to_owned(),
            },
            value: (*value).to_owned(),
        };
        Ok(List {
            items: values.iter().map(item).collect(),
        })
    }

    #[test]
    fn pods_are_joined_over_the_metrics_and_gaps_are_shown_as_gaps() {
        let nothing = || Err("no observation within the last 60 s".to_owned());
        let columns = [
            column(&[("a", "3"), ("b", "0")]),
            column(&[("a", "12")]),
            nothing(),
            column(&[("b", "1500m")]),
            nothing(),
            nothing(),
        ];
        let expected = "\x20POD  RUNNING  WAITING  KV CACHE  IN TOKENS/S  OUT TOKENS/S  TTFT P95
 a    3        12       -         -            -             -
 b    0        -        -         1500m        -             -";
        assert_eq!(render(&columns), expected);
        assert!(reasons(&columns).starts_with("\nKV CACHE: no observation"));
        assert_eq!(reasons(&columns).lines().count(), 4);
    }

    #[test]
    fn an_answer_of_this_server_is_read() {
        let list = crate::custom::wire::tests::full(Api::CustomV1Beta2);
        let read: List = serde_json::from_value(list).unwrap();
        assert_eq!(Ok(read), column(&[("decode-0", "12500m")]));
    }
}
