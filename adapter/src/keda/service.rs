//! The service: each call reads its trigger, measures, and answers.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use futures::{Stream, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use super::proto::external_scaler_server::ExternalScaler;
use super::proto::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
    MetricValue, ScaledObjectRef,
};
use super::trigger::{Trigger, wrong};
use crate::metrics::{InFlight, Kind};
use crate::query::Sources;
use crate::status::Refusal;

/// Answers KEDA's calls.
#[derive(Debug)]
pub(crate) struct Scaler {
    sources: Sources,
    /// Streams that may be open at a time.
    places: Arc<Semaphore>,
    /// Time between two looks of a stream.
    look: Duration,
    /// Ends the streams.
    stop: CancellationToken,
}

impl Scaler {
    /// Answers from these sources, with so many streams at a time that look for changes this often, until `stop`.
    pub(crate) fn new(
        sources: Sources,
        places: usize,
        look: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self {
            sources,
            places: Arc::new(Semaphore::new(places)),
            look,
            stop,
        }
    }

    /// Answers a call with what `answer` says, and counts it.
    fn answer<T>(
        &self,
        answer: impl FnOnce(&Self) -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let started = Instant::now();
        let outcome = answer(self);
        let code = outcome.as_ref().map_or_else(Status::code, |_| Code::Ok);
        let metrics = &self.sources.metrics;
        metrics.answered(Kind::Keda, http_code(code), started.elapsed());
        outcome.map(Response::new)
    }

    fn metric(&self, request: &GetMetricsRequest) -> Result<GetMetricsResponse, Status> {
        let Some(object) = &request.scaled_object_ref else {
            return Err(wrong("scaledObjectRef", "", "name the ScaledObject"));
        };
        let trigger = Trigger::read(object)?;
        let name = trigger.name();
        if !request.metric_name.eq_ignore_ascii_case(name) {
            let need = format!("this trigger has one metric: ask for {name:?}");
            return Err(wrong("metricName", &request.metric_name, &need));
        }
        let value = measure(&self.sources, &trigger).map_err(|refusal| status(&refusal))?;
        Ok(GetMetricsResponse {
            metric_values: vec![MetricValue {
                metric_name: request.metric_name.clone(),
                metric_value: whole(value),
                metric_value_float: value,
            }],
        })
    }

    fn stream(&self, object: &ScaledObjectRef) -> Result<Pushes, Status> {
        let trigger = Trigger::read(object)?;
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(
                "too many streams are open: raise --keda-max-streams, or use the trigger type external",
            )
        })?;
        let mut look = interval(self.look);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let watched = Watched {
            sources: self.sources.clone(),
            trigger,
            last: None,
            look,
            stop: self.stop.clone(),
            _place: place,
            _in_flight: self.sources.metrics.begin(),
        };
        Ok(Box::pin(stream::unfold(Some(watched), next)))
    }
}

/// What is pushed.
type Pushes = Pin<Box<dyn Stream<Item = Result<IsActiveResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalScaler for Scaler {
    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        self.answer(|scaler| {
            let trigger = Trigger::read(request.get_ref())?;
            is_active(&scaler.sources, &trigger)
                .map(|result| IsActiveResponse { result })
                .map_err(|refusal| status(&refusal))
        })
    }

    type StreamIsActiveStream = Pushes;

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Pushes>, Status> {
        self.answer(|scaler| scaler.stream(request.get_ref()))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        self.answer(|_| {
            let trigger = Trigger::read(request.get_ref())?;
            Ok(GetMetricSpecResponse {
                metric_specs: vec![MetricSpec {
                    metric_name: trigger.name().to_owned(),
                    target_size: whole(trigger.target),
                    target_size_float: trigger.target,
                }],
            })
        })
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        self.answer(|scaler| scaler.metric(request.get_ref()))
    }
}

/// One open stream.
struct Watched {
    sources: Sources,
    trigger: Trigger,
    /// What was pushed last; `None`: nothing yet.
    last: Option<bool>,
    look: Interval,
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
    _in_flight: InFlight,
}

/// Waits for the next thing to push. While there is no value nothing is pushed: what was last true is not known to have changed, and
/// KEDA learns the reason from its other calls. Ending the stream instead would make KEDA wait longer and longer before it opens another.
async fn next(
    watched: Option<Watched>,
) -> Option<(Result<IsActiveResponse, Status>, Option<Watched>)> {
    let mut watched = watched?;
    loop {
        tokio::select! {
            biased;
            () = watched.stop.cancelled() => {
                return Some((Err(Status::unavailable("the adapter is shutting down")), None));
            }
            _ = watched.look.tick() => {}
        }
        match is_active(&watched.sources, &watched.trigger) {
            Ok(result) if watched.last != Some(result) => {
                watched.last = Some(result);
                return Some((Ok(IsActiveResponse { result }), Some(watched)));
            }
            Err(refusal) if refusal.code() == StatusCode::BAD_REQUEST => {
                return Some((Err(status(&refusal)), None));
            }
            Ok(_) | Err(_) => {}
        }
    }
}

fn is_active(sources: &Sources, trigger: &Trigger) -> Result<bool, Refusal> {
    measure(sources, trigger).map(|value| value > trigger.activation)
}

/// The value as the metrics API would send it, to the thousandth.
fn measure(sources: &Sources, trigger: &Trigger) -> Result<f64, Refusal> {
    let value = sources.measure(&trigger.request)?;
    Ok(value.quantity.number())
}

/// The fields that only old versions of KEDA read hold whole numbers; rounded up, so that little never becomes nothing.
fn whole(number: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "0 to 9e15 fits i64")]
    let whole = number.ceil() as i64;
    whole
}

/// What the metrics API refuses, in KEDA's terms. That nothing exposes the metric (404) may pass, as when pods are being started, and is
/// no fault of the trigger, whose metric was found to be possible.
fn status(refusal: &Refusal) -> Status {
    if refusal.code() == StatusCode::BAD_REQUEST {
        Status::invalid_argument(refusal.message())
    } else {
        Status::unavailable(refusal.message())
    }
}

/// The code under which a call is counted beside the requests of the metrics API.
const fn http_code(code: Code) -> u16 {
    match code {
        Code::Ok => 200,
        Code::InvalidArgument => 400,
        Code::ResourceExhausted => 429,
        Code::Unavailable => 503,
        _ => 500,
    }
}
