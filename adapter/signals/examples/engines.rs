//! Prints the table of engines: `cargo run -p coppice-signals --example engines > docs/engines.md`.

#![expect(clippy::print_stdout, reason = "what it is for")]

fn main() {
    print!("{}", coppice_signals::engines::table());
}
