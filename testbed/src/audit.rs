//! Who changed what: the API server's audit log, read back.
//!
//! The log holds one line per changing request (the policy leaves reads and reviews out), written before the request
//! was answered, so that a count after an answer is complete.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::Value;

/// The audit log of one control plane.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
}

/// A place in the log: everything before it is old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Mark(u64);

/// One changing request that was answered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Write {
    /// Whom the server took the sender for (an impersonated user where there is one).
    pub user: String,
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// The resource with its group and subresource, for instance `podcliques.grove.io/status` or `pods`.
    pub resource: String,
    /// The object's namespace; empty for cluster-wide ones.
    pub namespace: String,
    /// The object's name; empty in a `create` with a generated name and in a `deletecollection`.
    pub name: String,
    /// The answer's HTTP status.
    pub code: u16,
    /// What the client calls itself (`User-Agent`).
    pub agent: String,
}

impl Write {
    /// Whether it renews, takes or releases a Lease: leader election and node heartbeats, which never rest.
    #[must_use]
    pub fn is_lease(&self) -> bool {
        self.resource == "leases.coordination.k8s.io"
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            user,
            verb,
            resource,
            namespace,
            name,
            code,
            agent: _,
        } = self;
        write!(f, "{user} {verb} {resource} {namespace}/{name} → {code}")
    }
}

impl AuditLog {
    /// The log at `path` (`logs/audit.log` of an instance).
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The present end of the log.
    ///
    /// # Errors
    ///
    /// There is no log: the control plane was started without one.
    pub fn mark(&self) -> io::Result<Mark> {
        Ok(Mark(self.path.metadata()?.len()))
    }

    /// All changes after `mark`, in the order in which they were answered.
    ///
    /// # Errors
    ///
    /// The log cannot be read.
    pub fn since(&self, mark: Mark) -> io::Result<Vec<Write>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(mark.0))?;
        let mut writes = Vec::new();
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            // The last line may still be in the making.
            if line.ends_with(b"\n") {
                writes.extend(parse(&line));
            }
            line.clear();
        }
        Ok(writes)
    }
}

/// How many changes each user made to each resource by each verb.
#[must_use]
pub fn count(writes: &[Write]) -> BTreeMap<(&str, &str, &str), usize> {
    let mut counts = BTreeMap::new();
    for write in writes {
        *counts
            .entry((
                write.user.as_str(),
                write.verb.as_str(),
                write.resource.as_str(),
            ))
            .or_default() += 1;
    }
    counts
}

fn parse(line: &[u8]) -> Option<Write> {
    let event: Value = serde_json::from_slice(line).ok()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let mut resource = text(&object["resource"]);
    if let Some(group) = object["apiGroup"].as_str() {
        resource = format!("{resource}.{group}");
    }
    if let Some(subresource) = object["subresource"].as_str() {
        resource = format!("{resource}/{subresource}");
    }
    let user = event["impersonatedUser"]["username"]
        .as_str()
        .or_else(|| event["user"]["username"].as_str())?;
    Some(Write {
        user: user.to_owned(),
        verb: text(&event["verb"]),
        resource,
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        code: event["responseStatus"]["code"]
            .as_u64()
            .and_then(|code| u16::try_from(code).ok())
            .unwrap_or_default(),
        agent: text(&event["userAgent"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"stage":"ResponseComplete","verb":"patch","user":{"username":"testbed-admin"},"impersonatedUser":{"username":"op"},"userAgent":"x/1","objectRef":{"resource":"podcliques","namespace":"a","name":"b","apiGroup":"grove.io","subresource":"status"},"responseStatus":{"code":200}}"#;

    #[test]
    fn writes_after_the_mark_are_read_and_half_lines_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        std::fs::write(&path, format!("{LINE}\n")).unwrap();
        let log = AuditLog::new(path.clone());
        let mark = log.mark().unwrap();
        assert_eq!(log.since(mark).unwrap(), []);
        std::fs::write(&path, format!("{LINE}\n{LINE}\n{}", &LINE[..50])).unwrap();
        let writes = log.since(mark).unwrap();
        assert_eq!(writes.len(), 1);
        assert_eq!(
            writes[0].to_string(),
            "op patch podcliques.grove.io/status a/b → 200"
        );
        assert_eq!(
            count(&writes)[&("op", "patch", "podcliques.grove.io/status")],
            1
        );
    }
}
