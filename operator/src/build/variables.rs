//! Environment variables the operator gives to containers.

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec};

/// A variable with a fixed value.
pub(crate) fn literal(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.into()),
        value_from: None,
    }
}

/// A variable with the value of one of the pod's labels.
pub(crate) fn from_label(name: &str, label: &str) -> EnvVar {
    let field = ObjectFieldSelector {
        api_version: None,
        field_path: format!("metadata.labels['{label}']"),
    };
    let source = EnvVarSource {
        field_ref: Some(field),
        ..EnvVarSource::default()
    };
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(source),
    }
}

/// Puts `variables` before those of every container and init container, so that the template's own may refer to them as
/// `$(NAME)`; variables of the same name in the template are dropped.
pub(crate) fn prepend(spec: &mut PodSpec, variables: &[EnvVar]) {
    let of_init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(of_init) {
        prepend_to(container, variables);
    }
}

fn prepend_to(container: &mut Container, variables: &[EnvVar]) {
    let own = container.env.take().unwrap_or_default();
    let kept = own
        .into_iter()
        .filter(|own| !variables.iter().any(|variable| variable.name == own.name));
    container.env = Some(variables.iter().cloned().chain(kept).collect());
}
