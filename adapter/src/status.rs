//! Errors as every Kubernetes client expects them: a `Status` object with a code and a reason.
//!
//! Messages are read by people, in HPA conditions and events. They carry no internals and stay the same from call to call while the
//! situation does. `Retry-After` is never sent: with it the HPA's client would sleep inside one of its few workers.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A refusal of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Details>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Details {
    group: &'static str,
    kind: String,
}

impl Refusal {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
        }
    }

    /// 400: the request cannot be understood.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401: credentials were presented and are not accepted, or none were and anonymous callers are not served.
    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// 403: the caller has no right to this.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 404: no such path or metric, or nothing that it could be measured at.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// 404: no such path, or one of a group that is not served.
    pub(crate) fn unknown_path() -> Self {
        Self::not_found("the server could not find the requested path")
    }

    /// 405: the path takes GET only, and no watches.
    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// 406: none of the accepted media types can be served.
    pub(crate) fn not_acceptable() -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            "only application/json, also as a Table of meta.k8s.io/v1, can be served",
        )
    }

    /// 414: the path and query are longer than anybody needs.
    pub(crate) fn uri_too_long() -> Self {
        Self::new(
            StatusCode::URI_TOO_LONG,
            "RequestURITooLong",
            "the path and query are longer than 16 KiB",
        )
    }

    /// 429: more requests than the configured limit are being answered.
    pub(crate) fn too_many_requests() -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "TooManyRequests",
            "too many requests are being answered, try again later",
        )
    }

    /// 500: the API server could not be asked about the caller.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// 503: the metric is known and there is no value that could be trusted.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            message,
        )
    }

    /// 504: not answered within the time that a request has.
    pub(crate) fn timeout() -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            "the request was not answered in time",
        )
    }

    /// Names the resource that was asked for.
    #[must_use]
    pub(crate) fn about(mut self, group: &'static str, resource: impl Into<String>) -> Self {
        self.details = Some(Details {
            group,
            kind: resource.into(),
        });
        self
    }

    /// Says more behind the message.
    #[must_use]
    pub(crate) fn with(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }

    /// The HTTP code.
    pub(crate) const fn code(&self) -> StatusCode {
        self.code
    }

    /// What went wrong, for people.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut body = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        if let Some(details) = self.details {
            body["details"] = serde_json::json!(details);
        }
        let mut response = (self.code, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if self.code == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static("GET"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_refusal_is_a_status_object_and_never_asks_to_retry() {
        let refusals = [
            (Refusal::bad_request("m"), 400, "BadRequest"),
            (Refusal::unauthorized(), 401, "Unauthorized"),
            (Refusal::forbidden("m"), 403, "Forbidden"),
            (Refusal::not_found("m").about("g", "r"), 404, "NotFound"),
            (Refusal::method_not_allowed("m"), 405, "MethodNotAllowed"),
            (Refusal::not_acceptable(), 406, "NotAcceptable"),
            (Refusal::too_many_requests(), 429, "TooManyRequests"),
            (Refusal::internal("m"), 500, "InternalError"),
            (Refusal::unavailable("m"), 503, "ServiceUnavailable"),
            (Refusal::timeout(), 504, "Timeout"),
        ];
        for (refusal, code, reason) in refusals {
            let response = refusal.into_response();
            assert_eq!(response.status().as_u16(), code);
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
            assert!(!response.headers().contains_key(header::RETRY_AFTER));
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let status: kube::core::Status = serde_json::from_slice(&body).unwrap();
            assert_eq!((status.code, status.reason.as_str()), (code, reason));
            assert!(status.is_failure());
        }
    }
}
