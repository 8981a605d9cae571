//! `manifests`: the objects that the adapter needs, as YAML.

use anyhow::Context;
use serde::Serialize;

use crate::objects::{self, Rights};
use crate::settings::ManifestsArgs;

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
    documents.push(document(&match &args.external_host {
        Some(host) => objects::external_service(&address, host),
        None => objects::pod_service(&address, args.target_port),
    })?);
    if !args.self_registering {
        let bundle = match &args.ca_bundle_file {
            Some(path) => Some(
                std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))?,
            ),
            None => None,
        };
        documents.push(document(&objects::api_service(
            &address,
            bundle.as_deref(),
        ))?);
    }
    Ok(documents.join("---\n"))
}

fn document(object: &impl Serialize) -> anyhow::Result<String> {
    serde_saphyr::to_string(object).context("cannot write YAML")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::settings::{Arguments, Command};

    fn rendered(arguments: &[&str]) -> Vec<serde_json::Value> {
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

    fn kinds(documents: &[serde_json::Value]) -> Vec<&str> {
        documents
            .iter()
            .filter_map(|document| document["kind"].as_str())
            .collect()
    }

    #[test]
    fn the_objects_are_complete_and_in_order() {
        let documents = rendered(&[]);
        let expected = [
            "ServiceAccount",
            "ClusterRole",
            "ClusterRole",
            "ClusterRoleBinding",
            "ClusterRoleBinding",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "RoleBinding",
            "Service",
            "APIService",
        ];
        assert_eq!(kinds(&documents), expected);
        let service = &documents[9];
        assert_eq!(service["spec"]["ports"][0]["targetPort"], 6443);
        assert_eq!(
            documents[10]["spec"]["service"]["namespace"],
            "coppice-system"
        );
    }

    #[test]
    fn a_self_registering_adapter_brings_no_api_service() {
        let documents = rendered(&["--self-registering", "--external-host", "localhost"]);
        assert!(!kinds(&documents).contains(&"APIService"));
        let service = documents
            .iter()
            .find(|document| document["kind"] == "Service")
            .unwrap();
        assert_eq!(service["spec"]["externalName"], "localhost");
    }
}
