//! The control endpoint of a running fleet: `POST /command` with a [`Command`] as JSON, `GET /state`.
//!
//! It listens on a loopback address and asks nobody who they are: whoever runs programs on this machine may command its
//! make-believe data centre.

use std::net::SocketAddr;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::command::{Command, CommandError, FleetState};
use super::driver::Envelope;

/// Sends a command to the loop and waits for the answer.
pub(super) async fn ask(
    commands: &mpsc::UnboundedSender<Envelope>,
    command: Command,
) -> Result<FleetState, CommandError> {
    let (reply, answer) = oneshot::channel();
    commands
        .send(Envelope { command, reply })
        .map_err(|_| CommandError::Ended)?;
    answer.await.map_err(|_| CommandError::Ended)?
}

/// Binds the endpoint and serves it until the runtime ends. Returns the address it got.
pub(super) async fn serve(
    address: SocketAddr,
    commands: mpsc::UnboundedSender<Envelope>,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let router = Router::new()
        .route("/command", post(command))
        .route("/state", get(state))
        .with_state(commands);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

async fn command(
    State(commands): State<mpsc::UnboundedSender<Envelope>>,
    Json(command): Json<Command>,
) -> Response {
    respond(ask(&commands, command).await)
}

async fn state(State(commands): State<mpsc::UnboundedSender<Envelope>>) -> Response {
    respond(ask(&commands, Command::Status).await)
}

fn respond(result: Result<FleetState, CommandError>) -> Response {
    match result {
        Ok(state) => Json(state).into_response(),
        Err(error) => {
            let status = match error {
                CommandError::NoSuchNode(_) | CommandError::NoSuchPod(_) => StatusCode::NOT_FOUND,
                CommandError::NotNow { .. } => StatusCode::CONFLICT,
                CommandError::BadValue { .. } => StatusCode::UNPROCESSABLE_ENTITY,
                CommandError::Refused(_) | CommandError::Ended => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, Json(json!({"error": error.to_string()}))).into_response()
        }
    }
}
