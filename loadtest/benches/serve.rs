//! How many streamed chunks a second a simulated engine serves, with its clients in the same process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use coppice_engine::{Detail, Profile, Settings};
use coppice_loadtest::serve::arguments::{EngineArgs, EngineConfig};
use coppice_loadtest::serve::instance::{Control, Neighbours, run};
use divan::Bencher;
use divan::counter::ItemsCount;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

fn main() {
    divan::main();
}

const STREAMS: usize = 256;
const TOKENS: usize = 100;

/// 2 ms a step for all sequences: 128,000 chunks a second are asked for.
fn config() -> EngineConfig {
    let args = EngineArgs::from_words(&["--model=sim"]).expect("the arguments are valid");
    let mut config = args.resolve().expect("the arguments are valid");
    let text = r#"{"id": "bench", "step": {"t0_ms": 2.0, "per_seq_ms": 0.0, "per_kv_token_ms": 0.0},
        "kv_capacity_tokens": 1600000, "max_num_seqs": 1024, "max_num_batched_tokens": 65536}"#;
    config.profile = Profile::from_json(text).expect("the profile is valid");
    config.settings = Settings {
        detail: Detail::Tokens,
        ..Settings::of(&config.profile)
    };
    config
}

fn start(runtime: &Runtime) -> SocketAddr {
    let (listening, address) = oneshot::channel();
    runtime.spawn(async move {
        let (_grace, grace) = watch::channel(None);
        let (_frozen, frozen) = watch::channel(false);
        let control = Control {
            drain: CancellationToken::new(),
            grace,
            frozen,
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let told = |address| listening.send(address).expect("the bench waits");
        run(config(), address, Neighbours::default(), control, told)
            .await
            .expect("the engine serves");
    });
    address.blocking_recv().expect("the engine listens")
}

/// Sends a request and reads its stream to the end.
fn stream(address: SocketAddr) {
    let body = format!(r#"{{"model":"sim","prompt":"x","max_tokens":{TOKENS},"stream":true}}"#);
    let mut socket = TcpStream::connect(address).expect("the server accepts");
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    socket
        .write_all(request.as_bytes())
        .expect("the server reads");
    let mut answer = Vec::with_capacity(TOKENS * 256);
    socket.read_to_end(&mut answer).expect("the server answers");
    assert!(
        answer.windows(12).any(|window| window == b"data: [DONE]"),
        "the stream is whole"
    );
}

#[divan::bench(name = "engine: chunks", sample_count = 10)]
fn engine(bencher: Bencher<'_, '_>) {
    let runtime = Runtime::new().expect("a runtime");
    let address = start(&runtime);
    bencher
        .counter(ItemsCount::new(STREAMS * TOKENS))
        .bench(|| {
            std::thread::scope(|scope| {
                for _ in 0..STREAMS {
                    scope.spawn(|| stream(address));
                }
            });
        });
}
