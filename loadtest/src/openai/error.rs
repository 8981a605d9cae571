//! Errors in OpenAI's form.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// An answer that is an error: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// Status of the answer.
    pub status: StatusCode,
    /// What is wrong and what to do, for the caller.
    pub message: String,
    /// The member of the request at fault.
    pub param: Option<&'static str>,
    /// When trying again makes sense, in seconds.
    pub retry_after_seconds: Option<u64>,
}

impl ApiError {
    /// The request cannot be served as it is.
    #[must_use]
    pub fn bad_request(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message: message.into(),
            param: Some(param),
            retry_after_seconds: None,
        }
    }

    /// The model is not served here.
    #[must_use]
    pub fn unknown_model(asked: &str, served: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            message: format!("the model {asked:?} is not served here; served: {served}"),
            param: Some("model"),
            retry_after_seconds: None,
        }
    }

    /// Nobody can serve the request now.
    #[must_use]
    pub fn unavailable(message: impl Into<String>, retry_after_seconds: u64) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: message.into(),
            param: None,
            retry_after_seconds: Some(retry_after_seconds),
        }
    }

    /// Whoever should have served the request failed.
    #[must_use]
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_GATEWAY,
            message: message.into(),
            param: None,
            retry_after_seconds: None,
        }
    }

    /// The error's name, as vLLM spells it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            status if status.is_client_error() => "BadRequestError",
            _ => "InternalServerError",
        }
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> String {
        json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.status.as_u16(),
        }})
        .to_string()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut response = (self.status, self.body()).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        if let Some(seconds) = self.retry_after_seconds {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
