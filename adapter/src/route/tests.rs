use super::*;

fn route(method: &str, uri: &str) -> Route {
    Route::parse(&method.parse().unwrap(), &uri.parse().unwrap()).expect("decodable")
}

fn metric(namespace: &str, name: &str) -> MetricPath {
    MetricPath {
        namespace: namespace.into(),
        name: name.into(),
    }
}

const BASE: &str = "/apis/external.metrics.k8s.io/v1beta1";

#[test]
fn a_metric_is_a_resource_with_the_verb_list() {
    let asked = route(
        "GET",
        &format!(
            "{BASE}/namespaces/serving/vllm%3ANum_Running?labelSelector=model+in+%28a%2Cb%29&limit=500"
        ),
    );
    assert_eq!(
        asked.target,
        Target::Metric(metric("serving", "vllm:Num_Running"))
    );
    assert_eq!(asked.parameter("labelSelector"), Some("model in (a,b)"));
    let expected = Attributes::Resource {
        api: Api::External,
        namespace: "serving".into(),
        verb: "list",
        resource: "vllm:num_running".into(),
        name: String::new(),
        subresource: String::new(),
    };
    assert_eq!(asked.attributes, expected);
    assert!(asked.is_get && !asked.is_watch());
}

#[test]
fn a_watch_and_other_methods_have_their_own_verbs() {
    assert!(route("GET", &format!("{BASE}/namespaces/a/m?watch=true")).is_watch());
    assert!(!route("GET", &format!("{BASE}/namespaces/a/m?watch=false")).is_watch());
    let posted = route("POST", &format!("{BASE}/namespaces/a/m"));
    assert!(matches!(
        posted.attributes,
        Attributes::Resource { verb: "create", .. }
    ));
    assert!(!posted.is_get);
}

#[test]
fn only_the_namespaced_form_is_a_metric() {
    for path in ["m", "namespaces/a/m/b", "namespaces/a", "namespaces"] {
        assert_eq!(
            route("GET", &format!("{BASE}/{path}")).target,
            Target::Unknown,
            "{path}"
        );
    }
    assert_eq!(
        route("GET", &format!("{BASE}/namespaces/a/m/explain")).target,
        Target::Explanation(metric("a", "m"))
    );
}

#[test]
fn discovery_paths_are_no_resources() {
    for (path, target) in [
        ("/", Target::Document(Document::Index)),
        ("/apis", Target::Document(Document::Groups)),
        ("/apis/", Target::Document(Document::Groups)),
        (
            "/apis/external.metrics.k8s.io",
            Target::Document(Document::Group(groups::EXTERNAL)),
        ),
        (BASE, Target::Document(Document::Resources(Api::External))),
        (
            CUSTOM,
            Target::Document(Document::Resources(Api::CustomV1Beta2)),
        ),
        ("/version", Target::Document(Document::Version)),
        ("/openapi/v2", Target::Document(Document::OpenApiV2)),
        ("/openapi/v3", Target::Document(Document::OpenApiV3Index)),
        (
            "/openapi/v3/apis/external.metrics.k8s.io/v1beta1",
            Target::Document(Document::OpenApiV3(Api::External)),
        ),
        ("/openapi/v3/apis/other.io/v1", Target::Unknown),
        ("/apis/other.io/v1/namespaces/a/m", Target::Unknown),
    ] {
        let asked = route("GET", path);
        assert_eq!(asked.target, target, "{path}");
        assert_eq!(
            asked.attributes,
            Attributes::Path {
                path: path.into(),
                verb: "get".into()
            }
        );
    }
}

#[test]
fn broken_escapes_are_refused() {
    for uri in ["/apis/%zz", "/apis/%f", "/apis?x=%ff"] {
        assert_eq!(
            Route::parse(&Method::GET, &uri.parse().unwrap()),
            None,
            "{uri}"
        );
    }
}

const CUSTOM: &str = "/apis/custom.metrics.k8s.io/v1beta2";

#[test]
fn a_metric_of_objects_is_a_subresource_with_the_verb_get() {
    let asked = route(
        "GET",
        &format!("{CUSTOM}/namespaces/serving/pods/%2A/vllm:Num_Running?metricLabelSelector=a%3Db"),
    );
    let all_pods = Subject::Objects {
        resource: "pods".into(),
        name: None,
    };
    assert_eq!(
        asked.target,
        Target::OfObjects(ObjectPath {
            api: Api::CustomV1Beta2,
            namespace: "serving".into(),
            subject: all_pods,
            metric: "vllm:Num_Running".into(),
        })
    );
    assert_eq!(
        asked.attributes,
        Attributes::Resource {
            api: Api::CustomV1Beta2,
            namespace: "serving".into(),
            verb: "get",
            resource: "pods".into(),
            name: "*".into(),
            subresource: "vllm:Num_Running".into(),
        }
    );
    assert_eq!(asked.parameter("metricLabelSelector"), Some("a=b"));
    assert!(route("GET", &format!("{CUSTOM}/namespaces/a/pods/*/m?watch=1")).is_watch());
}

#[test]
fn a_metric_of_a_namespace_stands_where_its_objects_would() {
    let asked = route(
        "GET",
        "/apis/custom.metrics.k8s.io/v1beta1/namespaces/serving/metrics/m",
    );
    assert_eq!(
        asked.target,
        Target::OfObjects(ObjectPath {
            api: Api::CustomV1Beta1,
            namespace: "serving".into(),
            subject: Subject::Namespace,
            metric: "m".into(),
        })
    );
    assert_eq!(
        asked.attributes,
        Attributes::Resource {
            api: Api::CustomV1Beta1,
            namespace: "serving".into(),
            verb: "get",
            resource: "metrics".into(),
            name: "m".into(),
            subresource: String::new(),
        }
    );
}

#[test]
fn other_paths_of_objects_are_unknown_and_have_rights_of_their_own() {
    for path in [
        "namespaces/a/pods",
        "namespaces/a/pods/p",
        "namespaces/a/pods/p/m/more",
        "nodes/n/m",
        "namespaces/a",
        "m",
    ] {
        let asked = route("GET", &format!("{CUSTOM}/{path}"));
        assert_eq!(asked.target, Target::Unknown, "{path}");
        assert!(
            matches!(asked.attributes, Attributes::Resource { .. }),
            "{path}"
        );
    }
    let nodes = route("GET", &format!("{CUSTOM}/nodes/n/m"));
    assert!(matches!(
        nodes.attributes,
        Attributes::Resource { ref namespace, .. } if namespace.is_empty()
    ));
}

#[test]
fn names_and_selectors_are_escaped_and_read_back() {
    assert_eq!(
        encode("vllm:num_requests_waiting"),
        "vllm%3Anum_requests_waiting"
    );
    for text in ["model in (a,b)", "100%", "a/b+c ü"] {
        let encoded = encode(text);
        assert_eq!(decode(&encoded, true).as_deref(), Some(text), "{encoded}");
    }
}
