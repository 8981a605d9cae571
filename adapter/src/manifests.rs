//! `manifests`: the objects that the adapter needs, as YAML.

use anyhow::Context;
use serde::Serialize;

use crate::objects::{self, Rights};
use crate::settings::ManifestsArgs;
use crate::workload;

/// The documents, one behind the other.
///
/// # Errors
/// When the bundle cannot be read.
pub(crate) fn render(args: &ManifestsArgs) -> anyhow::Result<String> {
    let address = args.address();
    let Rights {
        account,
        cluster_roles,
        cluster_bindings,
        roles,
        bindings,
    } = objects::rights(&args.rights());
    let mut documents = vec![document(&account)?];
    for object in &cluster_roles {
        documents.push(document(object)?);
    }
    for object in &cluster_bindings {
        documents.push(document(object)?);
    }
    for object in &roles {
        documents.push(document(object)?);
    }
    for object in &bindings {
        documents.push(document(object)?);
    }
    match &args.external_host {
        Some(host) => documents.push(document(&objects::external_service(&address, host))?),
        None => {
            let pods = args.workload();
            documents.push(document(&objects::pod_service(
                &address,
                pods.port,
                pods.keda_port,
            ))?);
            documents.push(document(&workload::deployment(&pods)?)?);
            documents.push(document(&workload::disruption_budget(&pods)?)?);
        }
    }
    if let Some(path) = &args.ca_bundle_file {
        let bundle = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        for api in args.apis.apis() {
            documents.push(document(&objects::api_service(
                api,
                &address,
                Some(&bundle),
            ))?);
        }
    }
    Ok(documents.join("---\n"))
}

fn document(object: &impl Serialize) -> anyhow::Result<String> {
    serde_saphyr::to_string(object).context("cannot write YAML")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use super::*;
    use crate::groups::Groups;
    use crate::settings::{Arguments, Command};

    fn rendered(arguments: &[&str]) -> Vec<Value> {
        let parsed =
            Arguments::parse_from(["coppice-adapter", "manifests"].iter().chain(arguments));
        let Command::Manifests(args) = parsed.command else {
            panic!("manifests")
        };
        let text = render(&args).unwrap();
        text.split("---\n")
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect()
    }

    fn find<'a>(documents: &'a [Value], kind: &str) -> Option<&'a Value> {
        documents.iter().find(|document| document["kind"] == kind)
    }

    /// The command line of the pods, read back as this program would.
    fn pod_arguments(documents: &[Value]) -> crate::settings::ServeArgs {
        let deployment = find(documents, "Deployment").expect("a Deployment");
        let arguments = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
        let arguments: Vec<String> = serde_json::from_value(arguments.clone()).unwrap();
        let parsed =
            Arguments::parse_from(["coppice-adapter".to_owned()].into_iter().chain(arguments));
        let Command::Serve(args) = parsed.command else {
            panic!("serve")
        };
        *args
    }

    #[test]
    fn by_default_the_pods_issue_their_certificate_and_register_themselves() {
        let documents = rendered(&[]);
        assert!(find(&documents, "APIService").is_none());
        let args = pod_arguments(&documents);
        assert!(args.register_apiservice);
        assert_eq!(args.tls.tls_secret.as_deref(), Some("coppice-adapter-tls"));
        let address = args.address("other", args.bind_address);
        assert_eq!(
            (
                address.namespace.as_str(),
                address.name.as_str(),
                address.port
            ),
            ("coppice-system", "coppice-adapter", 443)
        );
        let service = find(&documents, "Service").unwrap();
        assert_eq!(
            service["spec"]["ports"][0]["targetPort"],
            args.bind_address.port()
        );
        assert_eq!(
            find(&documents, "PodDisruptionBudget").unwrap()["spec"]["maxUnavailable"],
            1
        );
    }

    #[test]
    fn with_a_bundle_the_certificate_is_mounted_and_the_api_service_printed() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = folder.path().join("ca.crt");
        std::fs::write(&bundle, "pem").unwrap();
        let documents = rendered(&["--ca-bundle-file", bundle.to_str().unwrap()]);
        assert_eq!(
            find(&documents, "APIService").unwrap()["spec"]["caBundle"],
            "cGVt"
        );
        let args = pod_arguments(&documents);
        assert!(!args.register_apiservice && args.tls.tls_secret.is_none());
        assert!(args.tls.tls_cert_file.is_some());
    }

    #[test]
    fn each_group_and_version_that_is_served_is_registered_and_may_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = folder.path().join("ca.crt");
        std::fs::write(&bundle, "pem").unwrap();
        let documents = rendered(&["--apis=both", "--ca-bundle-file", bundle.to_str().unwrap()]);
        let named = |kind: &str| -> Vec<&Value> {
            let of_kind = documents.iter().filter(|each| each["kind"] == kind);
            of_kind.collect()
        };
        let services = named("APIService");
        let names: Vec<_> = services
            .iter()
            .map(|each| &each["metadata"]["name"])
            .collect();
        assert_eq!(
            names,
            [
                "v1beta1.external.metrics.k8s.io",
                "v1beta2.custom.metrics.k8s.io",
                "v1beta1.custom.metrics.k8s.io"
            ]
        );
        assert!(
            services[1]["spec"]["versionPriority"].as_i64()
                > services[2]["spec"]["versionPriority"].as_i64(),
            "the HPA takes the version of the greater priority"
        );
        let viewer = named("ClusterRole")
            .into_iter()
            .find(|role| role["metadata"]["name"] == "coppice-metrics-viewer")
            .unwrap();
        assert_eq!(
            viewer["rules"][0]["apiGroups"],
            serde_json::json!(["external.metrics.k8s.io", "custom.metrics.k8s.io"])
        );
        assert_eq!(pod_arguments(&documents).apis, Groups::Both);
    }

    #[test]
    fn kedas_port_is_one_of_the_pods_and_of_the_service() {
        assert_eq!(pod_arguments(&rendered(&[])).keda.keda_bind_address, None);
        let documents = rendered(&["--apis=custom", "--keda-port=6565"]);
        let args = pod_arguments(&documents);
        let address = args.keda.keda_bind_address.expect("served");
        assert_eq!((address.port(), args.keda.keda_plaintext), (6565, false));
        let service = find(&documents, "Service").unwrap();
        let port = &service["spec"]["ports"][1];
        assert_eq!(
            (&port["name"], &port["port"], &port["targetPort"]),
            (&"keda".into(), &6565.into(), &6565.into())
        );
    }

    #[test]
    fn an_adapter_outside_the_cluster_brings_no_pods() {
        let documents = rendered(&["--external-host", "localhost"]);
        assert!(find(&documents, "Deployment").is_none());
        assert_eq!(
            find(&documents, "Service").unwrap()["spec"]["externalName"],
            "localhost"
        );
    }
}
