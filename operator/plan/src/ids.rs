//! Who is who inside one PodCliqueSet, without rendered names.
//!
//! An object's Kubernetes name is made from these by the operator; here `worker` and `my-worker` can never be mixed up,
//! because nothing is ever recovered from a name.

use std::fmt;
use std::sync::Arc;

/// A template name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("name {name:?} {problem}")]
pub struct NameError {
    /// The refused text.
    pub name: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

fn checked(name: &str) -> Result<Arc<str>, NameError> {
    let refuse = |problem| {
        Err(NameError {
            name: name.to_owned(),
            problem,
        })
    };
    if name.is_empty() {
        return refuse("is empty");
    }
    if name.len() > 63 {
        return refuse("is longer than 63 characters");
    }
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = name.as_bytes();
    if !bytes.iter().all(|&c| alphanumeric(c) || c == b'-') {
        return refuse("may only hold lowercase letters, digits and '-'");
    }
    if !alphanumeric(bytes[0]) || !alphanumeric(bytes[bytes.len() - 1]) {
        return refuse("must start and end with a letter or digit");
    }
    Ok(Arc::from(name))
}

macro_rules! template_name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Accepts a DNS label of 1..=63 characters, because it becomes part of host names.
            ///
            /// # Errors
            /// The text is empty, too long, or no DNS label.
            pub fn new(name: &str) -> Result<Self, NameError> {
                checked(name).map(Self)
            }

            /// The name as written in the template.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

template_name! {
    /// Name of a clique in the set's template, e.g. `pworker`.
    CliqueName
}
template_name! {
    /// Name of a scaling group in the set's template, e.g. `prefill`.
    GroupName
}

/// Which copy of the set's template: `0..`.
pub type ReplicaIndex = u32;
/// Which copy of a scaling group inside one set replica: `0..`.
pub type GroupIndex = u32;
/// Which pod of a clique: `0..`, unique among the clique's live pods, holes allowed.
pub type PodIndex = u32;

/// One PodClique inside one set replica.
///
/// Ordering is by structure (standalone first, then group, replica, clique) and used only to make iteration stable;
/// the template's order is kept where order means something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CliqueId {
    /// A clique that no scaling group lists.
    Standalone(CliqueName),
    /// A clique inside replica `replica` of scaling group `group`.
    Member {
        /// The scaling group.
        group: GroupName,
        /// Which replica of the group.
        replica: GroupIndex,
        /// The clique's template name.
        clique: CliqueName,
    },
}

impl CliqueId {
    /// The clique's name in the template.
    #[must_use]
    pub fn template(&self) -> &CliqueName {
        match self {
            Self::Standalone(clique) | Self::Member { clique, .. } => clique,
        }
    }

    /// The group replica it lives in, if any.
    #[must_use]
    pub fn group(&self) -> Option<(&GroupName, GroupIndex)> {
        match self {
            Self::Standalone(_) => None,
            Self::Member { group, replica, .. } => Some((group, *replica)),
        }
    }
}

/// One gang inside one set replica: what is placed as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GangId {
    /// All standalone cliques and the first `minAvailable` replicas of every scaling group.
    Base,
    /// One scaling-group replica beyond the group's `minAvailable`.
    Scaled {
        /// The scaling group.
        group: GroupName,
        /// Which replica of the group (not the number in the gang's name).
        replica: GroupIndex,
    },
}

/// The server's identity of a pod; never reused.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// Wraps the uid text as the server gave it.
    #[must_use]
    pub fn new(uid: &str) -> Self {
        Self(Arc::from(uid))
    }

    /// The uid as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        for good in ["a", "pc-b", "0x", "x9"] {
            assert_eq!(CliqueName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", &"x".repeat(64)] {
            assert!(CliqueName::new(bad).is_err(), "{bad:?} should be refused");
        }
    }
}
