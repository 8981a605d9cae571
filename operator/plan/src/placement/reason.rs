//! Why a gang cannot be placed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A gang that fits nowhere, with the reason in each topology domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaceable {
    /// Name of the gang.
    pub gang: String,
    /// One entry for each domain, by name; one entry without domain when the gang has no topology constraint.
    pub domains: Vec<DomainReason>,
}

/// Why a gang does not fit into one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainReason {
    /// Value of the domain's label, or nothing for all nodes.
    pub domain: Option<String>,
    /// Nodes in the domain.
    pub nodes: usize,
    /// What stands in the way.
    pub reason: Reason,
}

/// What stands in a gang's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Pods of the floor do not exist yet.
    Incomplete {
        /// Name of the group.
        group: String,
        /// Pods that exist.
        pods: usize,
        /// Pods that the floor needs.
        floor: u32,
    },
    /// No node carries the label that the gang has to share, or none with the value of pods that run already.
    NoDomain {
        /// Key of the label.
        key: String,
        /// Value that is needed.
        value: Option<String>,
    },
    /// Pods of one kind do not fit, even without the rest of the gang.
    TooFew {
        /// Name of the group; the first, when several have equal pods.
        group: String,
        /// Further groups with equal pods.
        more_groups: usize,
        /// Pods that fit.
        fit: u64,
        /// Pods of the floor.
        floor: u32,
        /// Nodes that take not a single one, by what keeps it off.
        obstacles: BTreeMap<Obstacle, usize>,
    },
    /// Each kind of pod fits by itself, but together they need more than there is.
    TooMuchTogether {
        /// Name of the resource.
        resource: String,
        /// Thousandths that the floor needs.
        needed_milli: i128,
        /// Thousandths that are free.
        free_milli: i128,
    },
    /// A part of the gang that has to share a domain fits into none of them by itself.
    Part {
        /// Name of its first group.
        group: String,
        /// Its further groups.
        more_groups: usize,
        /// Key of the label that it has to share.
        key: String,
        /// Domains that it may go to.
        domains: usize,
        /// What stands in the way in the one with the most room.
        reason: Box<Self>,
    },
    /// There is enough of everything, but every way to divide the pods over the nodes was tried and fails.
    NotTogether,
    /// There may be a way, but it was not found within the effort that one gang may cost.
    GaveUp,
}

/// What keeps a pod off a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// The node is cordoned.
    Cordoned,
    /// The node has a taint that the pod does not tolerate.
    Tainted(String),
    /// The node lacks a label of the pod's node selector.
    NotSelected,
    /// No term of the pod's required node affinity holds.
    NotAffine,
    /// Too little of a resource is free.
    Lacks(Arc<str>),
    /// The node has as many pods as it takes.
    NoSlot,
    /// A gang that has waited longer claims the node.
    Claimed,
    /// kube-scheduler did not bind a pod of this gang to the node when it was planned there lately.
    Refused,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cordoned => f.write_str("cordoned"),
            Self::Tainted(taint) => write!(f, "tainted {taint}"),
            Self::NotSelected => f.write_str("outside the node selector"),
            Self::NotAffine => f.write_str("outside the node affinity"),
            Self::Lacks(resource) => write!(f, "too little {resource}"),
            Self::NoSlot => f.write_str("as many pods as they take"),
            Self::Claimed => f.write_str("claimed by a gang that waits longer"),
            Self::Refused => f.write_str("refused by the scheduler lately"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incomplete { group, pods, floor } => {
                write!(f, "{group} has {pods} of {floor} pods yet")
            }
            Self::NoDomain { key, value: None } => write!(f, "no node has the label {key}"),
            Self::NoDomain {
                key,
                value: Some(value),
            } => write!(f, "no node has the label {key}={value}"),
            Self::TooFew {
                group,
                more_groups,
                fit,
                floor,
                obstacles,
            } => {
                write!(f, "{fit} of {floor} pods of {group}")?;
                if *more_groups > 0 {
                    write!(f, " and {more_groups} more like it")?;
                }
                f.write_str(" fit")?;
                for (position, (obstacle, nodes)) in obstacles.iter().enumerate() {
                    let separator = if position == 0 {
                        "; nodes that take none: "
                    } else {
                        ", "
                    };
                    write!(f, "{separator}{nodes} {obstacle}")?;
                }
                Ok(())
            }
            Self::TooMuchTogether {
                resource,
                needed_milli,
                free_milli,
            } => write!(
                f,
                "all pods together need {} of {resource}, {} are free",
                Amount(*needed_milli),
                Amount(*free_milli)
            ),
            Self::Part {
                group,
                more_groups,
                key,
                domains,
                reason,
            } => {
                f.write_str(group)?;
                if *more_groups > 0 {
                    write!(f, " and {more_groups} more groups")?;
                }
                write!(
                    f,
                    " must share one {key}, and none of {domains} holds them; in the one with the most room, {reason}"
                )
            }
            Self::NotTogether => {
                f.write_str("there is enough of everything, but not on the right nodes")
            }
            Self::GaveUp => {
                f.write_str("no place was found within the effort that one gang may cost")
            }
        }
    }
}

/// Domains that are named before the rest is only counted.
const NAMED_DOMAINS: usize = 3;

impl fmt::Display for Unplaceable {
    /// One sentence; domains with the same reason share it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut alike: Vec<(String, Vec<&str>, usize)> = Vec::new();
        for DomainReason {
            domain,
            nodes,
            reason,
        } in &self.domains
        {
            let text = reason.to_string();
            let domain = domain.as_deref();
            match alike.iter_mut().find(|(of, ..)| *of == text) {
                Some((_, domains, sum)) => {
                    domains.extend(domain);
                    *sum += nodes;
                }
                None => alike.push((text, domain.into_iter().collect(), *nodes)),
            }
        }
        for (position, (reason, domains, nodes)) in alike.iter().enumerate() {
            if position > 0 {
                f.write_str("; ")?;
            }
            match domains.as_slice() {
                [] => write!(f, "{nodes} nodes: {reason}")?,
                domains => {
                    let named = &domains[..domains.len().min(NAMED_DOMAINS)];
                    f.write_str(&named.join(", "))?;
                    if domains.len() > named.len() {
                        write!(f, " and {} more", domains.len() - named.len())?;
                    }
                    write!(f, " ({nodes} nodes): {reason}")?;
                }
            }
        }
        Ok(())
    }
}

/// Thousandths, printed without needless digits.
struct Amount(i128);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(milli) = self;
        let (whole, part) = (milli / 1000, milli % 1000);
        if part == 0 {
            write!(f, "{whole}")
        } else {
            write!(f, "{whole}.{part:03}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn too_few(fit: u64) -> Reason {
        let obstacles = BTreeMap::from([
            (Obstacle::Lacks("nvidia.com/gpu".into()), 3),
            (Obstacle::Cordoned, 1),
            (Obstacle::Tainted("a=b:NoSchedule".to_owned()), 2),
        ]);
        Reason::TooFew {
            group: "w-0-decode".to_owned(),
            more_groups: 1,
            fit,
            floor: 4,
            obstacles,
        }
    }

    #[test]
    fn domains_with_one_reason_share_a_sentence() {
        let domain = |name: &str, reason| DomainReason {
            domain: Some(name.to_owned()),
            nodes: 8,
            reason,
        };
        let domains = vec![
            domain("r1", too_few(2)),
            domain("r2", too_few(2)),
            domain("r3", Reason::NotTogether),
            domain("r4", too_few(2)),
            domain("r5", too_few(2)),
        ];
        insta::assert_snapshot!(Unplaceable { gang: "ml/w-0".to_owned(), domains }.to_string(), @"r1, r2, r4 and 1 more (32 nodes): 2 of 4 pods of w-0-decode and 1 more like it fit; nodes that take none: 1 cordoned, 2 tainted a=b:NoSchedule, 3 too little nvidia.com/gpu; r3 (8 nodes): there is enough of everything, but not on the right nodes");
    }

    #[test]
    fn amounts_are_in_the_resources_own_unit() {
        let reason = Reason::TooMuchTogether {
            resource: "cpu".to_owned(),
            needed_milli: 4500,
            free_milli: 4000,
        };
        assert_eq!(
            reason.to_string(),
            "all pods together need 4.500 of cpu, 4 are free"
        );
    }
}
