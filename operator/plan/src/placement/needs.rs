//! What a pod needs of its node.

use super::node::{Effect, NodeShape, Taint};
use super::reason::Obstacle;
use super::resources::Resources;
use std::collections::BTreeMap;

/// Taint that a cordoned node stands for.
const CORDON: &str = "node.kubernetes.io/unschedulable";

/// What one pod needs of its node. Pods with equal needs are interchangeable.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodNeeds {
    /// Resources that the pod occupies: its containers together, or an init container if that needs more.
    pub requests: Resources,
    /// Taints that the pod tolerates.
    pub tolerations: Vec<Toleration>,
    /// Labels that the node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Terms of the required node affinity, one of which must hold; nothing is asked when absent.
    pub node_affinity: Option<Vec<NodeTerm>>,
}

/// A taint that a pod does not mind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Toleration {
    /// Key of the taint; absent means any, together with an absent value.
    pub key: Option<String>,
    /// Value of the taint; absent means any.
    pub value: Option<String>,
    /// Effect of the taint; absent means any.
    pub effect: Option<Effect>,
}

/// Requirements that all must hold. A term without requirements holds for no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTerm {
    /// About labels of the node.
    pub labels: Vec<Requirement>,
    /// About the name of the node.
    pub names: Vec<Requirement>,
}

/// A comparison of one label of the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    /// Key of the label; not used where the node's name is compared.
    pub key: String,
    /// How it is compared, and with what.
    pub operator: Operator,
}

/// How a label is compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// The label has one of these values.
    In(Vec<String>),
    /// The label has none of these values, or is absent.
    NotIn(Vec<String>),
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
    /// The label is a whole number above this one.
    Gt(i64),
    /// The label is a whole number below this one.
    Lt(i64),
    /// A comparison that this version does not know, which holds for no node.
    Unknown,
}

impl PodNeeds {
    /// What keeps the pod off the node however empty it is, or nothing.
    #[must_use]
    pub fn obstacle(&self, node: &NodeShape) -> Option<Obstacle> {
        if node.unschedulable && !self.tolerates(CORDON, "", Effect::NoSchedule) {
            return Some(Obstacle::Cordoned);
        }
        let keeps_off = |taint: &&Taint| match taint.effect {
            Effect::NoSchedule | Effect::NoExecute => {
                !self.tolerates(&taint.key, &taint.value, taint.effect)
            }
            Effect::PreferNoSchedule => false,
        };
        if let Some(taint) = node.taints.iter().find(keeps_off) {
            return Some(Obstacle::Tainted(taint.to_string()));
        }
        let differs = |(key, value): (&String, &String)| node.labels.get(key) != Some(value);
        if self.node_selector.iter().any(differs) {
            return Some(Obstacle::NotSelected);
        }
        match &self.node_affinity {
            Some(terms) if !terms.iter().any(|term| term.holds(node)) => Some(Obstacle::NotAffine),
            Some(_) | None => None,
        }
    }

    /// Taints of the node that the pod would rather avoid.
    pub(super) fn disliked_taints(&self, node: &NodeShape) -> usize {
        let is_disliked = |taint: &&Taint| match taint.effect {
            Effect::PreferNoSchedule => !self.tolerates(&taint.key, &taint.value, taint.effect),
            Effect::NoSchedule | Effect::NoExecute => false,
        };
        node.taints.iter().filter(is_disliked).count()
    }

    fn tolerates(&self, key: &str, value: &str, effect: Effect) -> bool {
        let matches = |toleration: &Toleration| {
            toleration.key.as_deref().is_none_or(|of| of == key)
                && toleration.value.as_deref().is_none_or(|of| of == value)
                && toleration.effect.is_none_or(|of| of == effect)
        };
        self.tolerations.iter().any(matches)
    }
}

impl NodeTerm {
    fn holds(&self, node: &NodeShape) -> bool {
        let has_requirements = !(self.labels.is_empty() && self.names.is_empty());
        let label = |requirement: &Requirement| {
            requirement
                .operator
                .holds(node.labels.get(&requirement.key).map(String::as_str))
        };
        let name = |requirement: &Requirement| requirement.operator.holds(Some(&node.name));
        has_requirements && self.labels.iter().all(label) && self.names.iter().all(name)
    }
}

impl Operator {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|value| values.iter().any(|of| of == value)),
            Self::NotIn(values) => value.is_none_or(|value| values.iter().all(|of| of != value)),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::Gt(bound) => number().is_some_and(|number| number > *bound),
            Self::Lt(bound) => number().is_some_and(|number| number < *bound),
            Self::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeShape {
        NodeShape {
            name: "n1".to_owned(),
            labels: BTreeMap::from([
                ("zone".to_owned(), "a".to_owned()),
                ("gpus".to_owned(), "8".to_owned()),
            ]),
            ..NodeShape::default()
        }
    }

    fn taint(key: &str, value: &str, effect: Effect) -> Taint {
        Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect,
        }
    }

    fn toleration(key: Option<&str>, value: Option<&str>, effect: Option<Effect>) -> Toleration {
        Toleration {
            key: key.map(str::to_owned),
            value: value.map(str::to_owned),
            effect,
        }
    }

    #[test]
    fn a_taint_needs_a_toleration_of_its_key_value_and_effect() {
        let mut node = node();
        node.taints = vec![
            taint("gpu", "h200", Effect::NoSchedule),
            taint("x", "", Effect::PreferNoSchedule),
        ];
        let obstacle = |tolerations: &[Toleration]| {
            let needs = PodNeeds {
                tolerations: tolerations.to_vec(),
                ..PodNeeds::default()
            };
            needs.obstacle(&node)
        };
        let tainted = Some(Obstacle::Tainted("gpu=h200:NoSchedule".to_owned()));
        assert_eq!(obstacle(&[]), tainted);
        assert_eq!(
            obstacle(&[toleration(Some("gpu"), Some("a100"), None)]),
            tainted
        );
        assert_eq!(
            obstacle(&[toleration(Some("gpu"), None, Some(Effect::NoExecute))]),
            tainted
        );
        assert_eq!(
            obstacle(&[toleration(
                Some("gpu"),
                Some("h200"),
                Some(Effect::NoSchedule)
            )]),
            None
        );
        assert_eq!(obstacle(&[toleration(Some("gpu"), None, None)]), None);
        assert_eq!(obstacle(&[toleration(None, None, None)]), None);
        assert_eq!(PodNeeds::default().disliked_taints(&node), 1);
    }

    #[test]
    fn a_cordon_is_tolerated_by_name_only() {
        let node = NodeShape {
            unschedulable: true,
            ..node()
        };
        assert_eq!(
            PodNeeds::default().obstacle(&node),
            Some(Obstacle::Cordoned)
        );
        let tolerations = vec![toleration(Some(CORDON), None, None)];
        let needs = PodNeeds {
            tolerations,
            ..PodNeeds::default()
        };
        assert_eq!(needs.obstacle(&node), None);
    }

    #[test]
    fn selectors_and_affinity_compare_labels_and_the_name() {
        let holds = |key: &str, operator: Operator| {
            let term = NodeTerm {
                labels: vec![Requirement {
                    key: key.to_owned(),
                    operator,
                }],
                names: vec![],
            };
            PodNeeds {
                node_affinity: Some(vec![NodeTerm::default(), term]),
                ..PodNeeds::default()
            }
            .obstacle(&node())
            .is_none()
        };
        let values = |value: &str| vec!["q".to_owned(), value.to_owned()];
        assert!(
            holds("zone", Operator::In(values("a"))) && !holds("zone", Operator::In(values("b")))
        );
        assert!(
            !holds("zone", Operator::NotIn(values("a")))
                && holds("none", Operator::NotIn(values("a")))
        );
        assert!(holds("zone", Operator::Exists) && !holds("none", Operator::Exists));
        assert!(holds("none", Operator::DoesNotExist) && !holds("zone", Operator::DoesNotExist));
        assert!(
            holds("gpus", Operator::Gt(7))
                && !holds("gpus", Operator::Gt(8))
                && !holds("zone", Operator::Gt(0))
        );
        assert!(holds("gpus", Operator::Lt(9)) && !holds("none", Operator::Lt(9)));
        assert!(!holds("zone", Operator::Unknown));

        let named = |name: &str| {
            let names = vec![Requirement {
                key: "metadata.name".to_owned(),
                operator: Operator::In(vec![name.to_owned()]),
            }];
            let terms = vec![NodeTerm {
                labels: vec![],
                names,
            }];
            PodNeeds {
                node_affinity: Some(terms),
                ..PodNeeds::default()
            }
            .obstacle(&node())
        };
        assert_eq!(
            (named("n1"), named("n2")),
            (None, Some(Obstacle::NotAffine))
        );
        let nothing = PodNeeds {
            node_affinity: Some(vec![]),
            ..PodNeeds::default()
        };
        assert_eq!(nothing.obstacle(&node()), Some(Obstacle::NotAffine));
        let selector = BTreeMap::from([("zone".to_owned(), "b".to_owned())]);
        let elsewhere = PodNeeds {
            node_selector: selector,
            ..PodNeeds::default()
        };
        assert_eq!(elsewhere.obstacle(&node()), Some(Obstacle::NotSelected));
    }
}
