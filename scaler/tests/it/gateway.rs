//! A stand-in gateway: counts requests and tokens as if load were offered, under the Dynamo front end's metric names.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Counts from its start on, whatever asks for it.
#[derive(Debug, Clone)]
pub(crate) struct Gateway {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    requests: f64,
    per_second: f64,
    waiting: f64,
    input: f64,
    output: f64,
    counted: Instant,
    answers: bool,
}

impl State {
    fn count(&mut self) {
        let now = Instant::now();
        self.requests += self.per_second * now.duration_since(self.counted).as_secs_f64();
        self.counted = now;
    }
}

impl Gateway {
    /// Listens on a free port; every request has this many input and output tokens.
    pub(crate) fn start(input: f64, output: f64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = State {
            requests: 0.0,
            per_second: 0.0,
            waiting: 0.0,
            input,
            output,
            counted: Instant::now(),
            answers: true,
        };
        let gateway = Self {
            address,
            state: Arc::new(Mutex::new(state)),
        };
        let serving = gateway.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serving.answer(stream);
            }
        });
        gateway
    }

    /// From now on this many requests a second arrive.
    pub(crate) fn load(&self, per_second: f64) {
        let mut state = self.state.lock().unwrap();
        state.count();
        state.per_second = per_second;
    }

    /// From now on this many requests wait.
    pub(crate) fn hold(&self, waiting: f64) {
        self.state.lock().unwrap().waiting = waiting;
    }

    /// Whether it answers scrapes.
    pub(crate) fn answer_scrapes(&self, answers: bool) {
        self.state.lock().unwrap().answers = answers;
    }

    fn answer(&self, mut stream: std::net::TcpStream) {
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut request = [0; 4096];
        if !stream.read(&mut request).is_ok_and(|read| read > 0) {
            return;
        }
        let (status, body) = self.body();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        drop(stream.write_all(format!("{head}{body}").as_bytes()));
    }

    fn body(&self) -> (&'static str, String) {
        let mut state = self.state.lock().unwrap();
        if !state.answers {
            return ("503 Service Unavailable", String::new());
        }
        state.count();
        let requests = state.requests.floor();
        let (input, output, waiting) = (
            requests * state.input,
            requests * state.output,
            state.waiting,
        );
        let body = format!(
            "# TYPE dynamo_frontend_requests_started_total counter\n\
             dynamo_frontend_requests_started_total{{model=\"m\"}} {requests}\n\
             # TYPE dynamo_frontend_queued_requests gauge\n\
             dynamo_frontend_queued_requests{{model=\"m\"}} {waiting}\n\
             # TYPE dynamo_frontend_input_sequence_tokens histogram\n\
             dynamo_frontend_input_sequence_tokens_bucket{{model=\"m\",le=\"+Inf\"}} {requests}\n\
             dynamo_frontend_input_sequence_tokens_sum{{model=\"m\"}} {input}\n\
             dynamo_frontend_input_sequence_tokens_count{{model=\"m\"}} {requests}\n\
             # TYPE dynamo_frontend_output_sequence_tokens histogram\n\
             dynamo_frontend_output_sequence_tokens_bucket{{model=\"m\",le=\"+Inf\"}} {requests}\n\
             dynamo_frontend_output_sequence_tokens_sum{{model=\"m\"}} {output}\n\
             dynamo_frontend_output_sequence_tokens_count{{model=\"m\"}} {requests}\n"
        );
        ("200 OK", body)
    }
}
