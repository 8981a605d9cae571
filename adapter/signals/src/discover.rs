//! Which endpoints there are: pods seen through a watch, and static addresses.
//!
//! A pod is *live* while it is ready and not terminating. Pods that run without being ready are scraped already, so that
//! their window is there when they become ready, but they do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::query::Selection;

/// Annotation: `"true"` to be scraped, anything else not to be.
pub const SCRAPE_ANNOTATION: &str = "prometheus.io/scrape";
/// Annotation: the port's number.
pub const PORT_ANNOTATION: &str = "prometheus.io/port";
/// Annotation: the path.
pub const PATH_ANNOTATION: &str = "prometheus.io/path";
/// The path where nothing else is said.
pub const DEFAULT_PATH: &str = "/metrics";
/// Names of container ports that are scraped without an annotation, the preferred one first.
pub const PORT_NAMES: [&str; 2] = ["metrics", "http"];

/// Where the metrics of some pods are, when someone says so (a scaling policy, a setting).
///
/// A pod that no rule selects is scraped where its annotations `prometheus.io/scrape`, `prometheus.io/port` and
/// `prometheus.io/path` say, else at its container port named `metrics`, else at the one named `http`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScrapeRule {
    /// Which pods; `model`, `model_id` and `role` match nothing here but pod labels.
    pub selection: Selection,
    /// Port; `None`: as without a rule.
    pub port: Option<Port>,
    /// Path; `None`: the annotation's, else `/metrics`.
    pub path: Option<String>,
}

/// A port by name or number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Port {
    /// A container port's name.
    Name(String),
    /// A number.
    Number(u16),
}

/// An endpoint that is not a pod: an address given by settings. Always live.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StaticTarget {
    /// Namespace it answers for.
    pub namespace: String,
    /// Its name in answers and messages.
    pub name: String,
    /// `host:port`.
    pub address: String,
    /// Path, starting with a slash.
    pub path: String,
    /// Labels it answers to.
    pub labels: BTreeMap<String, String>,
}

/// What the collector needs to know of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid; a pod made anew under its name is another one.
    pub uid: String,
    /// Labels.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Its address; `None` before it has one.
    pub address: Option<IpAddr>,
    /// Whether its condition `Ready` is true.
    pub ready: bool,
    /// Whether it is being deleted, or has ended.
    pub ending: bool,
    /// The value of [`SCRAPE_ANNOTATION`].
    pub scrape_annotation: Option<String>,
    /// The value of [`PORT_ANNOTATION`].
    pub port_annotation: Option<String>,
    /// The value of [`PATH_ANNOTATION`].
    pub path_annotation: Option<String>,
    /// Named TCP ports of its containers, in their order.
    pub ports: Vec<(String, u16)>,
}

/// A place to scrape a pod at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Port.
    pub port: u16,
    /// Path, starting with a slash.
    pub path: String,
}

impl PodFacts {
    /// A ready pod without labels whose one port is called `http`.
    #[must_use]
    pub fn ready(namespace: &str, name: &str, address: IpAddr, port: u16) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: String::new(),
            labels: Arc::default(),
            address: Some(address),
            ready: true,
            ending: false,
            scrape_annotation: None,
            port_annotation: None,
            path_annotation: None,
            ports: vec![("http".to_owned(), port)],
        }
    }

    /// Whether it counts: ready and not ending.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.ready && !self.ending
    }

    /// The places at which to scrape this pod: those of the rules that select it, else the one it names itself.
    ///
    /// None for a pod without an address, one that is ending, and one that names no port.
    #[must_use]
    pub fn places<'r>(&self, rules: impl IntoIterator<Item = &'r ScrapeRule>) -> Vec<Place> {
        if self.address.is_none() || self.ending {
            return Vec::new();
        }
        let mut selected = false;
        let mut places = BTreeSet::new();
        for rule in rules {
            let in_namespace = rule
                .selection
                .namespace
                .as_ref()
                .is_none_or(|namespace| *namespace == self.namespace);
            if in_namespace
                && rule
                    .selection
                    .selector
                    .matches(|key| self.labels.get(key).map(String::as_str))
            {
                selected = true;
                let port = match &rule.port {
                    None => self.own_port(),
                    Some(Port::Number(number)) => Some(*number),
                    Some(Port::Name(name)) => self.port_named(name),
                };
                places.extend(port.map(|port| self.place(port, rule.path.as_deref())));
            }
        }
        if !selected {
            match self.scrape_annotation.as_deref() {
                None | Some("true") => {
                    places.extend(self.own_port().map(|port| self.place(port, None)))
                }
                Some(_) => {}
            }
        }
        places.into_iter().collect()
    }

    fn place(&self, port: u16, path: Option<&str>) -> Place {
        let path = path
            .or(self.path_annotation.as_deref())
            .unwrap_or(DEFAULT_PATH);
        let is_path = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
        Place {
            port,
            path: if is_path {
                path.to_owned()
            } else {
                format!(
                    "/{}",
                    path.trim_matches(|c: char| !c.is_ascii_graphic() || c == '/')
                )
            },
        }
    }

    fn own_port(&self) -> Option<u16> {
        let annotated = self
            .port_annotation
            .as_deref()
            .filter(|_| self.scrape_annotation.as_deref() == Some("true"));
        match annotated.map(str::parse) {
            Some(Ok(port)) if port != 0 => Some(port),
            Some(_) | None => PORT_NAMES.iter().find_map(|name| self.port_named(name)),
        }
    }

    fn port_named(&self, wanted: &str) -> Option<u16> {
        self.ports
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, port)| *port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodFacts {
        let mut pod = PodFacts {
            labels: Arc::new(BTreeMap::from([("app".to_owned(), "decode".to_owned())])),
            ..PodFacts::ready("serving", "decode-0", [127, 64, 0, 5].into(), 8000)
        };
        pod.ports.insert(0, ("grpc".to_owned(), 9000));
        pod
    }

    fn places(pod: &PodFacts, rules: &[ScrapeRule]) -> Vec<(u16, String)> {
        pod.places(rules)
            .into_iter()
            .map(|place| (place.port, place.path))
            .collect()
    }

    fn rule(selector: &str, port: Option<Port>, path: Option<&str>) -> ScrapeRule {
        let selection = Selection {
            namespace: Some("serving".to_owned()),
            selector: selector.parse().unwrap(),
        };
        ScrapeRule {
            selection,
            port,
            path: path.map(str::to_owned),
        }
    }

    #[test]
    fn a_pod_names_its_place_by_annotations_or_port_names() {
        let at = |port, path: &str| vec![(port, path.to_owned())];
        assert_eq!(places(&pod(), &[]), at(8000, "/metrics"));
        let with_metrics = PodFacts {
            ports: vec![("http".to_owned(), 8000), ("metrics".to_owned(), 9090)],
            ..pod()
        };
        assert_eq!(places(&with_metrics, &[]), at(9090, "/metrics"));
        let yes = Some("true".to_owned());
        let annotated = PodFacts {
            scrape_annotation: yes.clone(),
            port_annotation: Some("7000".to_owned()),
            path_annotation: Some("prometheus/metrics".to_owned()),
            ..pod()
        };
        assert_eq!(places(&annotated, &[]), at(7000, "/prometheus/metrics"));
        let wrong = PodFacts {
            scrape_annotation: yes,
            port_annotation: Some("no".to_owned()),
            ..pod()
        };
        assert_eq!(places(&wrong, &[]), at(8000, "/metrics"));
        let refused = PodFacts {
            scrape_annotation: Some("false".to_owned()),
            ..pod()
        };
        assert_eq!(places(&refused, &[]), []);
        assert_eq!(
            places(
                &PodFacts {
                    ports: Vec::new(),
                    ..pod()
                },
                &[]
            ),
            []
        );
    }

    #[test]
    fn ending_pods_and_pods_without_an_address_have_no_place() {
        assert_eq!(
            places(
                &PodFacts {
                    ending: true,
                    ..pod()
                },
                &[]
            ),
            []
        );
        assert_eq!(
            places(
                &PodFacts {
                    address: None,
                    ..pod()
                },
                &[]
            ),
            []
        );
        assert!(
            !PodFacts {
                ending: true,
                ..pod()
            }
            .is_live()
        );
        assert_eq!(
            places(
                &PodFacts {
                    ready: false,
                    ..pod()
                },
                &[]
            )
            .len(),
            1,
            "scraped ahead of readiness"
        );
    }

    #[test]
    fn rules_win_over_what_the_pod_says() {
        let refused = PodFacts {
            scrape_annotation: Some("false".to_owned()),
            ..pod()
        };
        let rules = [
            rule(
                "app=decode",
                Some(Port::Name("grpc".to_owned())),
                Some("/m"),
            ),
            rule("app=decode", Some(Port::Number(1)), None),
            rule("app=other", Some(Port::Number(2)), None),
            rule("app=decode", Some(Port::Name("absent".to_owned())), None),
        ];
        assert_eq!(
            places(&refused, &rules),
            [(1, "/metrics".to_owned()), (9000, "/m".to_owned())]
        );
        assert_eq!(
            places(
                &pod(),
                &[rule(
                    "app=decode",
                    Some(Port::Name("absent".to_owned())),
                    None
                )]
            ),
            []
        );
        assert_eq!(
            places(&pod(), &[rule("app=decode", None, None)]),
            [(8000, "/metrics".to_owned())]
        );
    }
}
