//! KEDA's side of the external scaler, against the adapter as a process: the same values, over TLS that trusts whom the API server trusts.

use anyhow::ensure;
use coppice_testbed::wait;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic::{Code, Status};

use crate::world::{Adapter, LIMIT, World};

#[expect(
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    reason = "generated, and only called as KEDA calls it"
)]
mod proto {
    include!("../../src/keda/externalscaler.rs");
}

use proto::external_scaler_client::ExternalScalerClient;
use proto::{GetMetricsRequest, ScaledObjectRef};

/// Asks for the queue of all engines, of which there are 37, and for that of engines that are not there.
pub(crate) async fn answers(
    world: &World,
    adapter: &Adapter,
    namespace: &str,
) -> anyhow::Result<()> {
    let trust = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(world.bundle().await?))
        .domain_name("localhost");
    let channel = Channel::from_shared(format!("https://{}", adapter.keda))?.tls_config(trust)?;
    let client = ExternalScalerClient::new(channel.connect().await?);
    let object = |selector: &str| {
        let metadata = [
            ("metric", "coppice_requests_waiting"),
            ("selector", selector),
            ("targetValue", "5"),
        ];
        ScaledObjectRef {
            name: "engines".to_owned(),
            namespace: namespace.to_owned(),
            scaler_metadata: metadata
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        }
    };
    let value = async |selector: &str| -> Result<f64, Status> {
        let request = GetMetricsRequest {
            scaled_object_ref: Some(object(selector)),
            metric_name: "coppice_requests_waiting".to_owned(),
        };
        let answer = client.clone().get_metrics(request).await?.into_inner();
        Ok(answer.metric_values[0].metric_value_float)
    };
    wait::until(LIMIT, "the sum over both engines", || async {
        let value = value("app=engine").await?;
        ensure!((value - 37.0).abs() < 1e-9, "{value}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let status = value("app=absent").await.expect_err("nothing to measure");
    ensure!(
        status.code() == Code::Unavailable && status.message().contains("no ready endpoint"),
        "{status}"
    );
    let mut stream = client
        .clone()
        .stream_is_active(object("app=engine"))
        .await?
        .into_inner();
    let first = tokio::time::timeout(LIMIT, stream.message()).await??;
    ensure!(first.is_some_and(|pushed| pushed.result), "37 wait");
    Ok(())
}
