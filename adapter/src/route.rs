//! What a request asks for, read from its method, path and query; and what that is called when rights are checked.
//!
//! Every request has a [`Route`], also one that will be refused: rights are checked first, so that a caller without them learns nothing.

use std::borrow::Cow;

use axum::http::{Method, Uri};

use crate::groups::{self, Api};

/// A request, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// What is asked for.
    pub target: Target,
    /// What rights it takes.
    pub attributes: Attributes,
    /// Whether the method is GET.
    pub is_get: bool,
    /// The query parameters, decoded, in order.
    pub parameters: Vec<(String, String)>,
}

/// What can be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Something that does not depend on what is scraped.
    Document(Document),
    /// An external metric: `…/namespaces/NAMESPACE/METRIC`.
    Metric(MetricPath),
    /// The same with `/explain` behind it: how the value came about.
    Explanation(MetricPath),
    /// A metric of objects: `…/namespaces/NAMESPACE/RESOURCE/NAME/METRIC` or `…/namespaces/NAMESPACE/metrics/METRIC`.
    OfObjects(ObjectPath),
    /// Anything else.
    Unknown,
}

/// A document that describes the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Document {
    /// `/`: the paths there are.
    Index,
    /// `/apis`: the groups there are.
    Groups,
    /// `/apis/GROUP`.
    Group(&'static str),
    /// `/apis/GROUP/VERSION`: the resources, that is, metric names.
    Resources(Api),
    /// `/version`.
    Version,
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/openapi/v3`: which documents there are.
    OpenApiV3Index,
    /// `/openapi/v3/apis/GROUP/VERSION`.
    OpenApiV3(Api),
}

/// Which metric is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetricPath {
    /// The namespace as in the path.
    pub namespace: String,
    /// The name as in the path; upper and lower case are the same metric.
    pub name: String,
}

/// Which metric of which objects is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectPath {
    /// The version in which it is asked for.
    pub api: Api,
    /// The namespace as in the path.
    pub namespace: String,
    /// What is measured.
    pub subject: Subject,
    /// The metric's name as in the path; upper and lower case are the same metric.
    pub metric: String,
}

/// What a metric of objects is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The namespace itself.
    Namespace,
    /// One object, or all of a resource.
    Objects {
        /// Plural, with the group behind it unless that is the core group: `pods`, `podcliques.grove.io`.
        resource: String,
        /// Its name; `None` for all (`*`).
        name: Option<String>,
    },
}

/// What rights are checked against.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Attributes {
    /// A path that is no resource.
    Path {
        /// The path.
        path: String,
        /// The method, lower case.
        verb: String,
    },
    /// A resource of a group.
    Resource {
        /// The group and version.
        api: Api,
        /// Empty for a request across namespaces.
        namespace: String,
        /// `list` for a path without a name, as external metrics have it, `get` for one with a name, or what the method does.
        verb: &'static str,
        /// What stands where resources do: an external metric's name in lower case, or the resource that is measured.
        resource: String,
        /// What follows the resource, `*` among it; empty when nothing does.
        name: String,
        /// What follows the name: a metric of objects.
        subresource: String,
    },
}

/// Path segment that asks how a value came about.
pub(crate) const EXPLAIN: &str = "explain";

impl Route {
    /// Reads a request. `None` when the path or query holds escapes that decode to no text.
    pub(crate) fn parse(method: &Method, uri: &Uri) -> Option<Self> {
        let segments: Vec<String> = uri
            .path()
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(|segment| decode(segment, false).map(Cow::into_owned))
            .collect::<Option<_>>()?;
        let parameters = parameters(uri.query().unwrap_or_default())?;
        let is_watch = parameters
            .iter()
            .any(|(key, value)| key == "watch" && matches!(value.as_str(), "true" | "1" | ""));
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        let (target, attributes) = match parts.as_slice() {
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                match Api::of(group, version) {
                    Some(api) => (target(api, rest), resource(api, method, is_watch, rest)),
                    None => (Target::Unknown, path(method, uri)),
                }
            }
            other => (
                document(other).map_or(Target::Unknown, Target::Document),
                path(method, uri),
            ),
        };
        Some(Self {
            target,
            attributes,
            is_get: method == Method::GET,
            parameters,
        })
    }

    /// Whether a watch is asked for, which no metric offers.
    pub(crate) fn is_watch(&self) -> bool {
        matches!(&self.attributes, Attributes::Resource { verb: "watch", .. })
    }

    /// The first value of a query parameter.
    pub(crate) fn parameter(&self, key: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }
}

fn document(parts: &[&str]) -> Option<Document> {
    Some(match parts {
        [] => Document::Index,
        ["apis"] => Document::Groups,
        ["apis", group] => Document::Group(groups::known_group(group)?),
        ["apis", group, version] => Document::Resources(Api::of(group, version)?),
        ["version"] => Document::Version,
        ["openapi", "v2"] => Document::OpenApiV2,
        ["openapi", "v3"] => Document::OpenApiV3Index,
        ["openapi", "v3", "apis", group, version] => Document::OpenApiV3(Api::of(group, version)?),
        _ => return None,
    })
}

/// What is asked for below the path of a group and version.
fn target(api: Api, rest: &[&str]) -> Target {
    let owned = |text: &str| text.to_owned();
    match (api, rest) {
        (Api::External, ["namespaces", namespace, name, rest @ ..]) => {
            let path = MetricPath {
                namespace: owned(namespace),
                name: owned(name),
            };
            match rest {
                [] => Target::Metric(path),
                [EXPLAIN] => Target::Explanation(path),
                _ => Target::Unknown,
            }
        }
        (Api::CustomV1Beta2 | Api::CustomV1Beta1, ["namespaces", namespace, rest @ .., metric]) => {
            let subject = match rest {
                ["metrics"] => Subject::Namespace,
                [resource, name] => Subject::Objects {
                    resource: owned(resource),
                    name: (*name != EVERYTHING).then(|| owned(name)),
                },
                _ => return Target::Unknown,
            };
            Target::OfObjects(ObjectPath {
                api,
                namespace: owned(namespace),
                subject,
                metric: owned(metric),
            })
        }
        _ => Target::Unknown,
    }
}

/// Stands for the name of every object of a resource.
const EVERYTHING: &str = "*";

fn path(method: &Method, uri: &Uri) -> Attributes {
    Attributes::Path {
        path: uri.path().to_owned(),
        verb: method.as_str().to_ascii_lowercase(),
    }
}

/// The rights that a request below the path of a group and version takes, as the API server reads the same path.
fn resource(api: Api, method: &Method, is_watch: bool, rest: &[&str]) -> Attributes {
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        other => ("", other),
    };
    let part = |index: usize| rest.get(index).copied().unwrap_or_default();
    let (resource, name, subresource) = (part(0), part(1), part(2));
    let verb = match *method {
        Method::GET | Method::HEAD if is_watch => "watch",
        Method::GET | Method::HEAD if name.is_empty() => "list",
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if name.is_empty() => "deletecollection",
        Method::DELETE => "delete",
        _ => "unknown",
    };
    let resource = match api {
        // The HPA's client sends external metrics in lower case, and either case is the same metric.
        Api::External => resource.to_ascii_lowercase(),
        Api::CustomV1Beta2 | Api::CustomV1Beta1 => resource.to_owned(),
    };
    Attributes::Resource {
        api,
        namespace: namespace.to_owned(),
        verb,
        resource,
        name: name.to_owned(),
        subresource: subresource.to_owned(),
    }
}

fn parameters(query: &str) -> Option<Vec<(String, String)>> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((
                decode(key, true)?.into_owned(),
                decode(value, true)?.into_owned(),
            ))
        })
        .collect()
}

/// Resolves `%XX`, and `+` as a blank where `is_query`. `None` for a broken escape or bytes that are not UTF-8.
pub(crate) fn decode(text: &str, is_query: bool) -> Option<Cow<'_, str>> {
    if !(text.contains('%') || is_query && text.contains('+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                rest = tail;
                let high = char::from(digits[0]).to_digit(16)?;
                let low = char::from(digits[1]).to_digit(16)?;
                bytes.push(u8::try_from(high * 16 + low).ok()?);
            }
            b'+' if is_query => bytes.push(b' '),
            other => bytes.push(*other),
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Escapes everything that is not plainly allowed in a path or query.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte))
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests;
