//! The set of upstream's scenarios.

/// A set named `workload` out of upstream's scenarios: standalone `pc-a`, group `sg-x` of `pc-b` and `pc-c`.
pub(crate) struct Workload {
    pub(crate) replicas: u32,
    /// Replicas and minimum.
    pub(crate) a: (u32, u32),
    pub(crate) x: (u32, u32),
    pub(crate) b: (u32, u32),
    pub(crate) c: (u32, u32),
    pub(crate) startup: &'static str,
    /// How long a minimum may be missing.
    pub(crate) delay: &'static str,
}

impl Workload {
    /// WL1: everything is needed.
    pub(crate) const ONE: Self = Self {
        replicas: 1,
        a: (2, 2),
        x: (2, 2),
        b: (1, 1),
        c: (3, 3),
        startup: "CliqueStartupTypeAnyOrder",
        delay: "4h",
    };
    /// WL2: a floor of three pods.
    pub(crate) const TWO: Self = Self {
        a: (2, 1),
        x: (2, 1),
        c: (3, 1),
        ..Self::ONE
    };

    /// The manifest; pods take one GPU each and go to nodes of `pool`.
    pub(crate) fn yaml(&self, pool: &str) -> String {
        let Self {
            replicas,
            a,
            x,
            b,
            c,
            startup,
            delay,
        } = self;
        let pod = format!(
            r#"podSpec: {{nodeSelector: {{pool: {pool}}}, tolerations: [{{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}}], containers: [{{name: main, image: "registry.example/app:1", resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}"#
        );
        let clique = |name: &str, (replicas, minimum): (u32, u32)| {
            format!(
                "    - name: {name}\n      spec: {{roleName: {name}, replicas: {replicas}, minAvailable: {minimum}, {pod}}}\n"
            )
        };
        format!(
            "apiVersion: grove.io/v1alpha1\nkind: PodCliqueSet\nmetadata: {{name: workload}}\nspec:\n  replicas: {replicas}\n  \
             template:\n    cliqueStartupType: {startup}\n    terminationDelay: {delay}\n    cliques:\n{}{}{}    podCliqueScalingGroups:\n    - {{name: sg-x, \
             cliqueNames: [pc-b, pc-c], replicas: {}, minAvailable: {}}}\n",
            clique("pc-a", *a),
            clique("pc-b", *b),
            clique("pc-c", *c),
            x.0,
            x.1
        )
    }
}
