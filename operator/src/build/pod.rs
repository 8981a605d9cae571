//! Pods.

use std::collections::BTreeMap;

use coppice_operator_api::{PodCliqueSpec, env, init_container, labels, names};
use coppice_operator_plan::hash::pod_suffix;
use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, DownwardAPIProjection, DownwardAPIVolumeFile,
    DownwardAPIVolumeSource, KeyToPath, ObjectFieldSelector, Pod, PodSpec, ProjectedVolumeSource,
    ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

use super::{claim, variables};

/// Where the pods of one clique come from. Read from the PodClique *object*, so a clique that has not been admitted to a new
/// template keeps making pods of the one it has.
#[derive(Clone, Debug)]
pub(crate) struct Mould {
    /// Namespace of everything.
    pub(crate) namespace: String,
    /// Name of the set.
    pub(crate) set: String,
    /// Set replica.
    pub(crate) replica: u32,
    /// Name of the PodClique.
    pub(crate) clique: String,
    /// Uid of the PodClique.
    pub(crate) uid: String,
    /// Labels of the PodClique.
    pub(crate) labels: BTreeMap<String, String>,
    /// Annotations of the PodClique.
    pub(crate) annotations: BTreeMap<String, String>,
    /// Its spec.
    pub(crate) spec: PodCliqueSpec,
    /// Minimum of each clique it starts after, by name.
    pub(crate) parents: Vec<(String, u32)>,
    /// Domain that cluster-internal names end with.
    pub(crate) cluster_domain: String,
    /// Image of the init container.
    pub(crate) init_image: String,
}

impl Mould {
    /// Name of the pod with that index: the PodClique's name and five characters. `attempt` counts the pods the index has
    /// had; the same arguments give the same name, so a repeated create cannot make a second pod.
    pub(crate) fn pod_name(&self, index: u32, attempt: u32) -> String {
        // The API server keeps 58 characters of a name it completes; the same here.
        let mut prefix = names::pod_generate_name(&self.clique);
        prefix.truncate(58);
        format!("{prefix}{}", pod_suffix(&self.uid, index, attempt))
    }

    /// The pod with that index, which uses these claims. A gang backend adds what it needs.
    pub(crate) fn pod(&self, index: u32, name: String, claims: &[String]) -> Pod {
        let mut spec = self.spec.pod_spec.clone();
        variables::prepend(&mut spec, &self.variables());
        claim::use_claims(&mut spec, claims);
        spec.hostname = Some(names::pod_hostname(&self.clique, index));
        spec.subdomain = Some(names::headless_service(&self.set, self.replica));
        if !self.parents.is_empty() {
            add_init_container(&mut spec, &self.init_image, &self.parents);
        }
        let mut labels = self.labels.clone();
        let mut put = |key: &str, value: String| labels.insert(key.to_owned(), value);
        put(labels::CLIQUE, self.clique.clone());
        put(labels::SET_REPLICA_INDEX, self.replica.to_string());
        put(labels::POD_INDEX, index.to_string());
        let mut annotations = self.annotations.clone();
        annotations.remove(crate::apply::FINGERPRINT);
        Pod {
            metadata: ObjectMeta {
                annotations: (!annotations.is_empty()).then_some(annotations),
                // As the server would have noted it, had it made the name up.
                generate_name: Some(names::pod_generate_name(&self.clique)),
                labels: Some(labels),
                name: Some(name),
                namespace: Some(self.namespace.clone()),
                owner_references: Some(vec![self.owner()]),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
            status: None,
        }
    }

    /// The PodClique as controlling owner.
    pub(crate) fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: coppice_operator_api::PodClique::api_version(&()).into_owned(),
            kind: coppice_operator_api::PodClique::kind(&()).into_owned(),
            name: self.clique.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    fn variables(&self) -> [k8s_openapi::api::core::v1::EnvVar; 5] {
        let address = names::service_address(
            &self.set,
            self.replica,
            &self.namespace,
            &self.cluster_domain,
        );
        [
            variables::literal(env::SET_NAME, &*self.set),
            variables::literal(env::SET_REPLICA_INDEX, self.replica.to_string()),
            variables::literal(env::CLIQUE_NAME, &*self.clique),
            variables::literal(env::HEADLESS_SERVICE, address),
            variables::from_label(env::POD_INDEX, labels::POD_INDEX),
        ]
    }
}

/// The init container that waits for the parents, behind the template's own. It reads PodCliques with a token of the pod's
/// own service account, which is projected for it even where the template switches the token off.
fn add_init_container(spec: &mut PodSpec, image: &str, parents: &[(String, u32)]) {
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let arguments = parents
        .iter()
        .map(|(clique, minimum)| init_container::argument(clique, *minimum));
    spec.init_containers
        .get_or_insert_default()
        .push(Container {
            name: init_container::NAME.to_owned(),
            image: Some(image.to_owned()),
            args: Some(arguments.collect()),
            volume_mounts: Some(vec![
                mount(init_container::TOKEN_VOLUME, init_container::TOKEN_PATH),
                mount(
                    init_container::POD_INFO_VOLUME,
                    init_container::POD_INFO_PATH,
                ),
            ]),
            ..Container::default()
        });
    spec.volumes
        .get_or_insert_default()
        .extend([token_volume(), pod_info_volume()]);
}

fn field(path: &str, from: String) -> DownwardAPIVolumeFile {
    let selector = ObjectFieldSelector {
        api_version: None,
        field_path: from,
    };
    DownwardAPIVolumeFile {
        path: path.to_owned(),
        field_ref: Some(selector),
        ..DownwardAPIVolumeFile::default()
    }
}

/// What the kubelet mounts for a service account, under the operator's control.
fn token_volume() -> Volume {
    let token = ServiceAccountTokenProjection {
        audience: None,
        expiration_seconds: Some(3607),
        path: "token".to_owned(),
        user: None,
    };
    let certificates = ConfigMapProjection {
        name: "kube-root-ca.crt".to_owned(),
        items: Some(vec![KeyToPath {
            key: "ca.crt".to_owned(),
            path: "ca.crt".to_owned(),
            ..KeyToPath::default()
        }]),
        optional: None,
    };
    let namespace = DownwardAPIProjection {
        items: Some(vec![field("namespace", "metadata.namespace".to_owned())]),
    };
    let sources = vec![
        VolumeProjection {
            service_account_token: Some(token),
            ..VolumeProjection::default()
        },
        VolumeProjection {
            config_map: Some(certificates),
            ..VolumeProjection::default()
        },
        VolumeProjection {
            downward_api: Some(namespace),
            ..VolumeProjection::default()
        },
    ];
    Volume {
        name: init_container::TOKEN_VOLUME.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o644),
            sources: Some(sources),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn pod_info_volume() -> Volume {
    let files = vec![
        field(
            init_container::NAMESPACE_FILE,
            "metadata.namespace".to_owned(),
        ),
        field(
            init_container::POD_GANG_FILE,
            format!("metadata.labels['{}']", labels::GANG),
        ),
    ];
    Volume {
        name: init_container::POD_INFO_VOLUME.to_owned(),
        downward_api: Some(DownwardAPIVolumeSource {
            items: Some(files),
            ..DownwardAPIVolumeSource::default()
        }),
        ..Volume::default()
    }
}
