//! Endpoints: who they are, whether they are live, and what was scraped from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::engines::Tier;
use crate::query::{EndpointStatus, Selection, Why, model_id};
use crate::reading::Models;
use crate::selector::Test;
use crate::target::{Glance, Target};

/// What makes an endpoint this one and no other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EndpointKey {
    pub(crate) namespace: String,
    /// The pod, or the static target's name.
    pub(crate) name: String,
    /// The pod's uid; empty for a static target. A pod made anew under its name is another endpoint.
    pub(crate) uid: String,
    /// `host:port`.
    pub(crate) address: String,
    pub(crate) path: String,
}

/// An endpoint as discovery sees it, with what was scraped.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) key: EndpointKey,
    pub(crate) labels: Arc<BTreeMap<String, String>>,
    /// The label `role`.
    pub(crate) role: Option<String>,
    /// Ready and not terminating.
    pub(crate) live: bool,
    /// Not scraped, because there are too many.
    pub(crate) over_limit: bool,
    pub(crate) tracked: Arc<Tracked>,
}

/// What was scraped from an endpoint, and the handle of its scraper.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) state: Mutex<State>,
    /// Ends its scraper.
    pub(crate) stop: CancellationToken,
    /// Asks for a scrape at once.
    pub(crate) hurry: Notify,
}

/// Memory and last troubles.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) target: Target,
    /// How the last scrape failed; `None` if it did not.
    pub(crate) failure: Option<String>,
    /// Failures in a row.
    pub(crate) failures: u32,
}

/// A live endpoint that a selection takes in.
#[derive(Debug)]
pub(crate) struct Selected {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) models: Models,
    /// `None` before it was recognised.
    pub(crate) tier: Option<Tier>,
    /// It has series, and they are of no server that we know.
    pub(crate) foreign: bool,
    /// The role that the server says it has.
    pub(crate) server_role: Option<&'static str>,
    /// A hash of the one model that is asked about; `None` for none or several.
    pub(crate) model: Option<u64>,
    /// When its last good sample was taken.
    pub(crate) last: Option<Timestamp>,
    /// Why its samples do not count.
    pub(crate) problem: Option<Why>,
}

impl Tracked {
    pub(crate) fn new(rows: usize, stop: CancellationToken) -> Self {
        Self {
            state: Mutex::new(State {
                target: Target::new(rows),
                failure: None,
                failures: 0,
            }),
            stop,
            hurry: Notify::new(),
        }
    }
}

impl Endpoint {
    /// Namespace and name, for messages.
    pub(crate) fn display(&self) -> String {
        format!("{}/{}", self.key.namespace, self.key.name)
    }

    /// Takes the endpoint in, if the selection wants it.
    ///
    /// What the server says about itself (model, role) is not known before the first scrape; until then an endpoint
    /// counts as wanted, so that it is missed rather than left out.
    pub(crate) fn select(
        self: &Arc<Self>,
        selection: &Selection,
        stale_after: Duration,
        now: Timestamp,
    ) -> Option<Selected> {
        let in_namespace = selection
            .namespace
            .as_ref()
            .is_none_or(|namespace| *namespace == self.key.namespace);
        if !in_namespace || !self.labels_match(selection) {
            return None;
        }
        self.look(selection, stale_after, now)
    }

    /// As [`Self::select`], for an endpoint whose namespace and labels are known to match.
    pub(crate) fn look(
        self: &Arc<Self>,
        selection: &Selection,
        stale_after: Duration,
        now: Timestamp,
    ) -> Option<Selected> {
        let state = self.tracked.state.lock();
        let target = &state.target;
        let Glance {
            last,
            tier,
            foreign,
            role: server_role,
            only_model,
        } = target.glance;
        let models = if last.is_some() {
            self.select_content(selection, target)?
        } else {
            Models::ALL
        };
        let model = if models == Models::ALL {
            only_model
        } else {
            target.only_model(models)
        };
        let problem = match last {
            Some(last) => {
                let age = Duration::try_from(now.duration_since(last)).unwrap_or_default();
                (age > stale_after).then(|| {
                    state
                        .failure
                        .clone()
                        .map_or_else(|| Why::Stale(age.as_secs().div_ceil(10) * 10), Why::Failed)
                })
            }
            None if self.over_limit => Some(Why::Limited("limits.targets")),
            None => Some(state.failure.clone().map_or(Why::NotScraped, Why::Failed)),
        };
        drop(state);
        Some(Selected {
            endpoint: Arc::clone(self),
            models,
            tier,
            foreign,
            server_role,
            model,
            last,
            problem,
        })
    }

    fn is_about_content(&self, key: &str) -> bool {
        is_content_key(key) && !self.labels.contains_key(key)
    }

    /// Whether the requirements on pod labels hold.
    pub(crate) fn labels_match(&self, selection: &Selection) -> bool {
        selection.selector.requirements().iter().all(|requirement| {
            self.is_about_content(&requirement.key)
                || requirement
                    .test
                    .holds(self.labels.get(&requirement.key).map(String::as_str))
        })
    }

    /// The models that the requirements on what the server says leave; `None` for none.
    fn select_content(&self, selection: &Selection, target: &Target) -> Option<Models> {
        let requirements = selection.selector.requirements().iter();
        if requirements
            .clone()
            .all(|requirement| !is_content_key(&requirement.key))
        {
            return Some(Models::ALL);
        }
        let content: Vec<_> = requirements
            .filter(|requirement| self.is_about_content(&requirement.key))
            .collect();
        let holds = |test: &Test, model: Option<&str>| test.holds(model);
        for requirement in content
            .iter()
            .filter(|requirement| requirement.key == "role")
        {
            if !requirement.test.holds(target.glance.role) {
                return None;
            }
        }
        let about_models: Vec<_> = content
            .into_iter()
            .filter(|requirement| requirement.key != "role")
            .collect();
        if about_models.is_empty() {
            return Some(Models::ALL);
        }
        if target.models().is_empty() {
            return about_models
                .iter()
                .all(|requirement| holds(&requirement.test, None))
                .then_some(Models::ALL);
        }
        target.select_models(|model| {
            about_models.iter().all(|requirement| {
                if requirement.key == "model" {
                    holds(&requirement.test, Some(model))
                } else {
                    holds(&requirement.test, Some(&model_id(model)))
                }
            })
        })
    }
}

/// Whether a selector's key may be about what the server says.
fn is_content_key(key: &str) -> bool {
    matches!(key, "model" | "model_id" | "role")
}

impl Selected {
    /// The pod's label, else what the server says.
    pub(crate) fn role(&self) -> Option<&str> {
        self.endpoint.role.as_deref().or(self.server_role)
    }

    /// What is known about it, for people.
    pub(crate) fn status(&self) -> EndpointStatus {
        let EndpointKey {
            namespace,
            name,
            uid: _,
            address,
            path,
        } = self.endpoint.key.clone();
        let state = self.endpoint.tracked.state.lock();
        EndpointStatus {
            namespace,
            name,
            address,
            path,
            live: self.endpoint.live,
            server: state.target.recognition().map(|known| known.name()),
            models: state
                .target
                .models()
                .iter()
                .map(ToString::to_string)
                .collect(),
            role: self.role().map(str::to_owned),
            last_sample: self.last,
            problem: self.problem.clone(),
            failure: state.failure.clone(),
            series: state.target.series(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collection::Collection;
    use crate::engines::Servers;
    use crate::settings::Limits;

    const BODY: &str = "vllm:num_requests_running{model_name=\"org/A\",engine=\"0\"} 1\n\
        vllm:num_requests_running{model_name=\"org/B\",engine=\"0\"} 2\n";

    fn endpoint(labels: &[(&str, &str)], body: Option<&str>) -> Arc<Endpoint> {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let tracked = Tracked::new(4, CancellationToken::new());
        if let Some(body) = body {
            let at = Timestamp::from_second(1000).unwrap();
            let collection = |recognition| Arc::new(Collection::new(recognition, &BTreeMap::new()));
            tracked
                .state
                .lock()
                .target
                .ingest(
                    body.as_bytes(),
                    true,
                    at,
                    &Limits::default(),
                    Servers::built_in(),
                    collection,
                )
                .unwrap();
        }
        let key = EndpointKey {
            namespace: "serving".to_owned(),
            name: "pod".to_owned(),
            uid: String::new(),
            address: "10.0.0.1:8000".to_owned(),
            path: "/metrics".to_owned(),
        };
        let labels: BTreeMap<String, String> = labels;
        Arc::new(Endpoint {
            key,
            role: labels.get("role").cloned(),
            labels: Arc::new(labels),
            live: true,
            over_limit: false,
            tracked: Arc::new(tracked),
        })
    }

    fn select(endpoint: &Arc<Endpoint>, selector: &str, at: i64) -> Option<Selected> {
        let selection = Selection {
            namespace: Some("serving".to_owned()),
            selector: selector.parse().unwrap(),
        };
        endpoint.select(
            &selection,
            Duration::from_secs(30),
            Timestamp::from_second(at).unwrap(),
        )
    }

    #[test]
    fn pod_labels_models_and_roles_select() {
        let scraped = endpoint(&[("app", "a")], Some(BODY));
        for (selector, wanted) in [
            ("", true),
            ("app=a", true),
            ("app=b", false),
            ("model_id=org-a", true),
            ("model_id in (org-b,org-c)", true),
            ("model_id=org-c", false),
            ("model_id", true),
            ("!model", false),
            ("role=prefill", false),
            ("role!=prefill", true),
        ] {
            assert_eq!(
                select(&scraped, selector, 1001).is_some(),
                wanted,
                "{selector}"
            );
        }
        let labelled = endpoint(&[("model", "mine"), ("role", "decode")], Some(BODY));
        assert!(select(&labelled, "model=mine,role=decode", 1001).is_some());
        assert!(select(&labelled, "model=other", 1001).is_none());
    }

    #[test]
    fn what_is_not_scraped_yet_is_missed_rather_than_left_out() {
        let new = endpoint(&[], None);
        let selected = select(&new, "model_id=org-a,role=prefill", 1000).unwrap();
        assert_eq!(selected.problem, Some(Why::NotScraped));
    }

    #[test]
    fn a_sample_grows_stale() {
        let scraped = endpoint(&[], Some(BODY));
        assert_eq!(select(&scraped, "", 1030).unwrap().problem, None);
        assert_eq!(
            select(&scraped, "", 1031).unwrap().problem,
            Some(Why::Stale(40))
        );
        scraped.tracked.state.lock().failure = Some("connect".to_owned());
        assert_eq!(
            select(&scraped, "", 1031).unwrap().problem,
            Some(Why::Failed("connect".to_owned()))
        );
    }
}
