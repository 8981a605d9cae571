//! The API as clients see it: through the aggregation layer, and directly.

use anyhow::{Context, bail, ensure};
use coppice_testbed::wait;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::keda;
use crate::world::{Adapter, BASE, CUSTOM, Engine, LIMIT, SYSTEM, World, program, raw, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_served_through_the_aggregation_layer_to_those_who_may() -> anyhow::Result<()> {
    let world = World::start().await?;
    let adapter = world.adapter().await?;
    let namespace = world.cluster.namespace("api").await?;
    let engines = [Engine::start(30).await?, Engine::start(7).await?];
    for (engine, name) in engines.iter().zip(["one", "two"]) {
        engine.pod(&world.client, &namespace, name).await?;
    }
    values(&world, &namespace).await?;
    what_is_missing_is_an_error(&world, &namespace).await?;
    objects(&world, &namespace).await?;
    discovery(&world).await?;
    doctor(&world, &namespace).await?;
    top(&world, &namespace).await?;
    keda::answers(&world, &adapter, &namespace).await?;
    openapi(&world).await?;
    rights(&world, &namespace).await?;
    direct(&world, &adapter, &namespace).await?;
    many_at_once(&world, &adapter, &namespace).await?;
    namespaces_go_away(&world).await?;
    steady_state(&world, &namespace).await?;
    adapter.stop().await
}

async fn values(world: &World, namespace: &str) -> anyhow::Result<()> {
    let metric = format!("{BASE}/namespaces/{namespace}/coppice_requests_waiting");
    let list = wait::until(LIMIT, "a sum over both engines", || async {
        let list = world.raw(&metric).await?;
        ensure!(list["items"][0]["value"] == "37", "{list}");
        Ok(list)
    })
    .await?;
    assert_eq!(list["kind"], "ExternalMetricValueList");
    let item = &list["items"][0];
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(item["metricName"], "coppice_requests_waiting");
    assert_eq!(item["metricLabels"]["model"], "qwen3");
    assert_eq!(item["metricLabels"]["namespace"], namespace);
    let at: jiff::Timestamp = item["timestamp"].as_str().context("a time")?.parse()?;
    ensure!(
        jiff::Timestamp::now().duration_since(at).as_secs() < 5,
        "{at} is old"
    );

    // The HPA's client sends names in lower case and selectors as text; any series can be asked for by its own name.
    let selected = format!("{metric}?labelSelector=model+in+%28other%2Cqwen3%29%2C%21absent");
    assert_eq!(world.raw(&selected).await?["items"][0]["value"], "37");
    let own = format!(
        "{BASE}/namespaces/{namespace}/vllm:num_requests_waiting?labelSelector=role%3Ddecode"
    );
    wait::until(LIMIT, "the series by its own name", || async {
        let list = world.raw(&own).await?;
        ensure!(list["items"][0]["value"] == "37", "{list}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;

    let table = world
        .kubectl(&[
            "get",
            "coppice_requests_waiting.external.metrics.k8s.io",
            "-n",
            namespace,
        ])
        .await?;
    ensure!(
        table.starts_with("METRIC") && table.contains("37"),
        "{table}"
    );
    let listed = world
        .kubectl(&["api-resources", "--api-group=external.metrics.k8s.io"])
        .await?;
    ensure!(
        listed.contains("coppice_ttft_seconds_p95") && listed.contains("coppice_wanted_replicas"),
        "{listed}"
    );

    let shown = tokio::process::Command::new(program())
        .args([
            "get",
            "coppice_requests_waiting",
            "--namespace",
            namespace,
            "--selector",
            "app=engine",
            "--kubeconfig",
        ])
        .arg(world.cluster.kubeconfig())
        .output()
        .await?;
    let text = String::from_utf8(shown.stdout)?;
    ensure!(
        shown.status.success(),
        "{}",
        String::from_utf8_lossy(&shown.stderr)
    );
    for part in [
        "value      37 (sent as 37)",
        "rule       sum",
        "endpoints  2 of 2 contribute",
        &format!("{namespace}/one"),
    ] {
        ensure!(text.contains(part), "{part:?} is not in\n{text}");
    }
    Ok(())
}

async fn what_is_missing_is_an_error(world: &World, namespace: &str) -> anyhow::Result<()> {
    for (path, code, part) in [
        ("coppice_nothing", 404, "coppice_nothing"),
        (
            "coppice_requests_waiting?labelSelector=app%3Dabsent",
            404,
            "no ready endpoint",
        ),
        (
            "coppice_requests_waiting?labelSelector=%28%28",
            400,
            "label selector",
        ),
        ("coppice_kv_cache_usage", 404, "not exposed by vllm"),
        ("coppice_ttft_seconds_p95", 404, "not exposed by vllm"),
    ] {
        let (answered, message) = refusal(
            world
                .raw(&format!("{BASE}/namespaces/{namespace}/{path}"))
                .await,
        )?;
        ensure!(
            answered == code && message.contains(part),
            "{path}: {answered} {message}"
        );
    }
    let elsewhere = format!("{BASE}/namespaces/default/coppice_requests_waiting");
    let (code, message) = refusal(world.raw(&elsewhere).await)?;
    ensure!(
        code == 404,
        "another namespace's engines are not shown: {message}"
    );
    Ok(())
}

/// The same values, of objects: in both versions, and of the namespace.
async fn objects(world: &World, namespace: &str) -> anyhow::Result<()> {
    for version in ["v1beta2", "v1beta1"] {
        let base = format!("/apis/custom.metrics.k8s.io/{version}/namespaces/{namespace}");
        let pods = format!("{base}/pods/*/coppice_requests_waiting?labelSelector=app%3Dengine");
        let list = world.raw(&pods).await?;
        let values: Vec<_> = list["items"]
            .as_array()
            .context("items")?
            .iter()
            .map(|item| (&item["describedObject"]["name"], &item["value"]))
            .collect();
        assert_eq!(
            values,
            [(&json!("one"), &json!("30")), (&json!("two"), &json!("7"))]
        );
        let all = format!("{base}/metrics/coppice_requests_waiting");
        assert_eq!(world.raw(&all).await?["items"][0]["value"], "37");
    }
    let eve = world.cluster.client_as("eve", &["system:authenticated"]);
    let pods = format!("{CUSTOM}/namespaces/{namespace}/pods/*/coppice_requests_waiting");
    let (code, message) = refusal(raw(&eve, &pods).await)?;
    ensure!(
        code == 403 && message.contains("pods/coppice_requests_waiting"),
        "{code} {message}"
    );
    Ok(())
}

/// What `doctor` says of a cluster in which all is well, and of one in which the group is somebody else's.
async fn doctor(world: &World, namespace: &str) -> anyhow::Result<()> {
    let run = async |flags: &[&str]| -> anyhow::Result<(bool, String)> {
        let output = tokio::process::Command::new(program())
            .args(["doctor", "--apis=both", "--namespace", namespace])
            .args(flags)
            .arg("--kubeconfig")
            .arg(world.cluster.kubeconfig())
            .output()
            .await?;
        let text = String::from_utf8(output.stdout)?;
        Ok((output.status.success(), text))
    };
    let (is_well, text) = run(&[]).await?;
    ensure!(
        is_well && text.lines().all(|line| line.starts_with("ok ")),
        "{text}"
    );
    for part in [
        "APIService v1beta2.custom.metrics.k8s.io: names Service",
        "certificate: is signed by the caBundle",
        "query coppice_requests_waiting: is 37",
        "rights: the adapter and the HPA controller have",
    ] {
        ensure!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let (is_well, text) = run(&["--service-name=other"]).await?;
    ensure!(
        !is_well && text.contains("belongs to another server") && text.contains("next: "),
        "{text}"
    );
    Ok(())
}

/// Both pods in one table, with a dash for what they do not expose.
async fn top(world: &World, namespace: &str) -> anyhow::Result<()> {
    let output = tokio::process::Command::new(program())
        .args(["top", "--namespace", namespace, "--kubeconfig"])
        .arg(world.cluster.kubeconfig())
        .output()
        .await?;
    let text = String::from_utf8(output.stdout)?;
    let row = |pod: &str| -> Option<Vec<String>> {
        let mut rows = text.lines().map(|line| line.split_whitespace());
        let row = rows.find(|row| row.clone().next() == Some(pod))?;
        Some(row.map(str::to_owned).collect())
    };
    ensure!(output.status.success(), "{text}");
    let cells = row("one").context("a row for pod one")?;
    assert_eq!(cells[..4], ["one", "4", "30", "-"].map(str::to_owned));
    ensure!(
        row("two").is_some_and(|cells| cells[2] == "7") && text.contains("KV CACHE: "),
        "{text}"
    );
    Ok(())
}

async fn discovery(world: &World) -> anyhow::Result<()> {
    let list = world.raw(BASE).await?;
    assert_eq!(list["kind"], "APIResourceList");
    assert_eq!(list["resources"][0]["verbs"], json!(["get"]));
    // The API server's own view of all groups, which it polls.
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    wait::until(
        LIMIT,
        "our metrics in the API server's own discovery",
        || async {
            let request = http::Request::get("/apis")
                .header("accept", accept)
                .body(Vec::new())?;
            let all: Value = world.client.request(request).await?;
            let groups = all["items"].as_array().context("groups")?;
            let ours = groups
                .iter()
                .find(|group| group["metadata"]["name"] == "external.metrics.k8s.io")
                .context("our group")?;
            let version = &ours["versions"][0];
            ensure!(version["freshness"] == "Current", "{version}");
            ensure!(
                version["resources"]
                    .as_array()
                    .is_some_and(|resources| resources.len() > 20),
                "{version}"
            );
            let custom = groups
                .iter()
                .find(|group| group["metadata"]["name"] == "custom.metrics.k8s.io")
                .context("the other group")?;
            let version = &custom["versions"][0];
            ensure!(
                version["version"] == "v1beta2" && version["freshness"] == "Current",
                "{version}"
            );
            ensure!(
                version["resources"][0]["subresources"]
                    .as_array()
                    .is_some_and(|metrics| metrics.len() > 20),
                "{version}"
            );
            Ok::<_, anyhow::Error>(())
        },
    )
    .await?;
    Ok(())
}

/// The aggregation layer takes our schemas in, without complaints.
async fn openapi(world: &World) -> anyhow::Result<()> {
    let explained = wait::until(LIMIT, "an explanation by kubectl", || {
        world.kubectl(&[
            "explain",
            "coppice_requests_waiting.external.metrics.k8s.io",
        ])
    })
    .await?;
    for part in ["KIND:       ExternalMetricValueList", "items", "-required-"] {
        ensure!(explained.contains(part), "{part:?} is not in\n{explained}");
    }
    wait::until(LIMIT, "our schemas in the whole API's", || async {
        let all = world.raw("/openapi/v2").await?;
        let ours =
            &all["definitions"]["io.k8s.metrics.pkg.apis.external.v1beta1.ExternalMetricValue"];
        ensure!(ours["properties"]["metricName"].is_object(), "{ours}");
        let path = format!("{BASE}/namespaces/{{namespace}}/coppice_requests_waiting");
        ensure!(all["paths"][&path]["get"].is_object(), "no path {path}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let log = std::fs::read_to_string(world.cluster.instance().logs().join("kube-apiserver.log"))?;
    let complaints: Vec<_> = log
        .lines()
        .filter(|line| {
            (line.contains("external.metrics.k8s.io") || line.contains("custom.metrics.k8s.io"))
                && line.to_ascii_lowercase().contains("openapi")
        })
        .filter(|line| line.starts_with('E') || line.contains("failed"))
        .collect();
    ensure!(complaints.is_empty(), "{complaints:#?}");
    Ok(())
}

async fn rights(world: &World, namespace: &str) -> anyhow::Result<()> {
    let eve = world.cluster.client_as("eve", &["system:authenticated"]);
    let (code, message) = refusal(
        raw(
            &eve,
            &format!("{BASE}/namespaces/{namespace}/coppice_requests_waiting"),
        )
        .await,
    )?;
    ensure!(code == 403 && message.contains("eve"), "{code} {message}");
    Ok(())
}

/// Around the API server: the adapter must find out by itself who calls and what they may do.
async fn direct(world: &World, adapter: &Adapter, namespace: &str) -> anyhow::Result<()> {
    let http = world.direct(adapter).await?;
    let base = format!("https://localhost:{}", adapter.address.port());
    let metric = format!("{base}{BASE}/namespaces/{namespace}/coppice_requests_waiting");

    assert_eq!(
        http.get(format!("{base}/readyz"))
            .send()
            .await?
            .text()
            .await?,
        "ok"
    );
    let anonymous = http.get(&metric).send().await?;
    assert_eq!(anonymous.status().as_u16(), 403);
    assert_eq!(anonymous.json::<Value>().await?["kind"], "Status");
    let forged = http
        .get(&metric)
        .header("x-remote-user", "admin")
        .header("x-remote-group", "system:masters")
        .send()
        .await?;
    assert_eq!(forged.status().as_u16(), 403);
    let bad = http.get(&metric).bearer_auth("nonsense").send().await?;
    assert_eq!(bad.status().as_u16(), 401);
    certificates(world, adapter, &metric).await?;

    let token = world.token(namespace, "viewer").await?;
    let promoted = http
        .get(&metric)
        .bearer_auth(&token)
        .header("x-remote-group", "system:masters")
        .send()
        .await?;
    assert_eq!(promoted.status().as_u16(), 403, "headers add nothing");
    let code = async || -> anyhow::Result<u16> {
        Ok(http
            .get(&metric)
            .bearer_auth(&token)
            .send()
            .await?
            .status()
            .as_u16())
    };
    assert_eq!(code().await?, 403, "a good token without rights");
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "viewer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coppice-metrics-viewer"},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}],
    });
    coppice_testbed::apply(&world.client, &binding.to_string(), namespace).await?;
    wait::until(LIMIT, "the new right to be noticed", || async {
        let code = code().await?;
        ensure!(code == 200, "{code}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    Ok(())
}

/// Two hundred autoscalers with the same question get the same answer, which is worked out for few of them.
async fn many_at_once(world: &World, adapter: &Adapter, namespace: &str) -> anyhow::Result<()> {
    const ASKERS: usize = 200;
    let metric = format!("{BASE}/namespaces/{namespace}/coppice_requests_waiting");
    let answered = "adapter_requests_total{kind=\"value\",code=\"200\"}";
    let before = (
        adapter.measured(answered).await?,
        adapter.measured("adapter_evaluations_total").await?,
    );
    let asked = (0..ASKERS).map(|_| world.raw(&metric));
    for list in futures::future::try_join_all(asked).await? {
        ensure!(list["items"][0]["value"] == "37", "{list}");
    }
    let answers = adapter.measured(answered).await? - before.0;
    let evaluations = adapter.measured("adapter_evaluations_total").await? - before.1;
    ensure!(answers >= 200.0, "{answers} answers");
    // An answer holds for a fifth of a second; on a busy machine the questions take several.
    ensure!(
        evaluations < answers / 2.0,
        "{evaluations} evaluations for {answers} answers"
    );
    Ok(())
}

/// A metrics API that cannot be listed would keep every namespace that is deleted.
async fn namespaces_go_away(world: &World) -> anyhow::Result<()> {
    let name = world.cluster.namespace("short-lived").await?;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces.delete(&name, &DeleteParams::default()).await?;
    wait::until(LIMIT, "the namespace to be gone", || async {
        match namespaces.get_opt(&name).await? {
            None => Ok(()),
            Some(left) => bail!("{:?}", left.status),
        }
    })
    .await?;
    Ok(())
}

/// A certificate says who calls when the cluster's authority has signed it, and nothing when anybody else has.
async fn certificates(world: &World, adapter: &Adapter, metric: &str) -> anyhow::Result<()> {
    let code = async |pem: Vec<u8>| -> anyhow::Result<u16> {
        let identity = reqwest::Identity::from_pem(&pem)?;
        let http = world.direct_builder(adapter).await?.identity(identity);
        Ok(http.build()?.get(metric).send().await?.status().as_u16())
    };
    let credentials = world.cluster.config().auth_info;
    let certificate = credentials.client_certificate.context("a certificate")?;
    let key = credentials.client_key.context("a key")?;
    let administrator = [std::fs::read(certificate)?, std::fs::read(key)?].concat();
    assert_eq!(code(administrator).await?, 200);

    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    let name = &mut params.distinguished_name;
    name.push(rcgen::DnType::OrganizationName, "system:masters");
    name.push(rcgen::DnType::CommonName, "admin");
    let stranger = params.self_signed(&key)?.pem() + &key.serialize_pem();
    assert_eq!(code(stranger.into_bytes()).await?, 401);
    Ok(())
}

/// Asked all the time, the adapter writes nothing.
async fn steady_state(world: &World, namespace: &str) -> anyhow::Result<()> {
    let audit = world.cluster.audit();
    let mark = audit.mark()?;
    let metric = format!("{BASE}/namespaces/{namespace}/coppice_requests_waiting");
    wait::holds(
        std::time::Duration::from_secs(5),
        "answers without writes",
        || async {
            world.raw(&metric).await?;
            let writes = audit.since(mark)?;
            let own: Vec<_> = writes
                .iter()
                .filter(|write| write.user.ends_with(&format!("{SYSTEM}:coppice-adapter")))
                .collect();
            ensure!(own.is_empty(), "{own:?}");
            Ok::<_, anyhow::Error>(())
        },
    )
    .await?;
    Ok(())
}
