//! Arithmetic over inputs: `waiting + held_at_router`, `max(waiting, 1) / running_limit`.
//!
//! Read by recursive descent. Each input is brought together over its endpoints first, and only then computed with; so an expression
//! may join what a gateway says with what engines say.

use std::fmt;

use coppice_signals::{Input, Metric, Signal};

/// Bytes of an expression.
pub(crate) const MAX_BYTES: usize = 1024;
/// How deep parentheses may stand in each other.
pub(crate) const MAX_DEPTH: usize = 16;
/// How many different inputs an expression may read.
pub(crate) const MAX_INPUTS: usize = 16;

/// An expression that can be computed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expression {
    root: Node,
    inputs: Vec<Input>,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Number(f64),
    /// Place in the list of inputs.
    Input(usize),
    Binary(Operator, Box<[Self; 2]>),
    Extreme(Extreme, Vec<Self>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extreme {
    Min,
    Max,
}

/// A text that is no expression: where, and what would do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at character {at}: {need}")]
pub(crate) struct Malformed {
    /// Place in the text, from 1.
    pub at: usize,
    /// What should stand there.
    pub need: String,
}

impl Expression {
    /// What it reads, each once, in the order of the text.
    pub(crate) fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The one input that it is, if it computes nothing.
    pub(crate) fn only_input(&self) -> Option<&Input> {
        match self.root {
            Node::Input(index) => self.inputs.get(index),
            Node::Number(_) | Node::Binary(..) | Node::Extreme(..) => None,
        }
    }

    /// Its value; `values` are those of the inputs, in order. Dividing by zero gives no finite number.
    pub(crate) fn value(&self, values: &[f64]) -> f64 {
        self.root.value(values)
    }

    /// Reads an expression.
    ///
    /// # Errors
    /// Where it breaks off, and what would do.
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        let mut parser = Parser {
            text,
            at: 0,
            depth: 0,
            inputs: Vec::new(),
        };
        if text.len() > MAX_BYTES {
            return Err(parser.wrong(format!("use at most {MAX_BYTES} bytes")));
        }
        let root = parser.sum()?;
        parser.skip_blanks();
        if parser.at < text.len() {
            return Err(parser.wrong("write + - * / or nothing more here"));
        }
        if parser.inputs.is_empty() {
            parser.at = 0;
            return Err(parser.wrong("read at least one signal or metric"));
        }
        Ok(Self {
            root,
            inputs: parser.inputs,
        })
    }
}

impl Node {
    fn value(&self, values: &[f64]) -> f64 {
        match self {
            Self::Number(number) => *number,
            Self::Input(index) => values.get(*index).copied().unwrap_or(f64::NAN),
            Self::Binary(operator, sides) => {
                let [left, right] = sides.each_ref().map(|side| side.value(values));
                match operator {
                    Operator::Add => left + right,
                    Operator::Subtract => left - right,
                    Operator::Multiply => left * right,
                    Operator::Divide => left / right,
                }
            }
            Self::Extreme(extreme, nodes) => {
                let pick = |one: f64, other: f64| match extreme {
                    // f64::min and f64::max would pass over what is no number.
                    _ if one.is_nan() || other.is_nan() => f64::NAN,
                    Extreme::Min => one.min(other),
                    Extreme::Max => one.max(other),
                };
                let values = nodes.iter().map(|node| node.value(values));
                values.reduce(pick).unwrap_or(f64::NAN)
            }
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Bytes read.
    at: usize,
    depth: usize,
    inputs: Vec<Input>,
}

impl Parser<'_> {
    fn wrong(&self, need: impl Into<String>) -> Malformed {
        let read = self.text.get(..self.at).unwrap_or(self.text);
        Malformed {
            at: read.chars().count() + 1,
            need: need.into(),
        }
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    /// Takes one of these characters, if it comes next.
    fn take(&mut self, any: &[char]) -> Option<char> {
        self.skip_blanks();
        let next = self.rest().chars().next().filter(|c| any.contains(c))?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn expect(&mut self, wanted: char) -> Result<(), Malformed> {
        match self.take(&[wanted]) {
            Some(_) => Ok(()),
            None => Err(self.wrong(format!("write {wanted:?} here"))),
        }
    }

    fn sum(&mut self) -> Result<Node, Malformed> {
        let mut node = self.product()?;
        while let Some(sign) = self.take(&['+', '-']) {
            let operator = if sign == '+' {
                Operator::Add
            } else {
                Operator::Subtract
            };
            node = Node::Binary(operator, Box::new([node, self.product()?]));
        }
        Ok(node)
    }

    fn product(&mut self) -> Result<Node, Malformed> {
        let mut node = self.operand()?;
        while let Some(sign) = self.take(&['*', '/']) {
            let operator = if sign == '*' {
                Operator::Multiply
            } else {
                Operator::Divide
            };
            node = Node::Binary(operator, Box::new([node, self.operand()?]));
        }
        Ok(node)
    }

    fn operand(&mut self) -> Result<Node, Malformed> {
        self.skip_blanks();
        match self.rest().chars().next() {
            Some('(') => self.nested(Self::sum_in_parentheses),
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if is_word(c) => self.named(),
            _ => Err(self.wrong("write a signal, a metric, a number or a parenthesis here")),
        }
    }

    fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Node, Malformed>,
    ) -> Result<Node, Malformed> {
        if self.depth == MAX_DEPTH {
            return Err(self.wrong(format!("nest at most {MAX_DEPTH} deep")));
        }
        self.depth += 1;
        let node = read(self)?;
        self.depth -= 1;
        Ok(node)
    }

    fn sum_in_parentheses(&mut self) -> Result<Node, Malformed> {
        self.expect('(')?;
        let node = self.sum()?;
        self.expect(')')?;
        Ok(node)
    }

    fn number(&mut self) -> Result<Node, Malformed> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.';
        let length = self
            .rest()
            .find(|c: char| !is_part(c))
            .unwrap_or_else(|| self.rest().len());
        let text = self.rest().get(..length).unwrap_or_default();
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => {
                self.at += length;
                Ok(Node::Number(number))
            }
            _ => Err(self.wrong("write a number such as 2 or 0.5 here")),
        }
    }

    fn word(&mut self) -> String {
        let rest = self.rest();
        let length = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        let word = rest.get(..length).unwrap_or_default().to_owned();
        self.at += length;
        word
    }

    /// A function or an input.
    fn named(&mut self) -> Result<Node, Malformed> {
        let begin = self.at;
        let word = self.word();
        self.skip_blanks();
        let is_call = self.rest().starts_with('(');
        match (word.as_str(), is_call) {
            ("min", true) => self.nested(|parser| parser.extreme(Extreme::Min)),
            ("max", true) => self.nested(|parser| parser.extreme(Extreme::Max)),
            ("series", true) => self.scraped(Metric::Series),
            ("rate", true) => self.scraped(Metric::SeriesRate),
            (_, true) => {
                self.at = begin;
                Err(self.wrong(format!(
                    "{word:?} is no function: use min, max, series or rate"
                )))
            }
            (_, false) => {
                let input = input(&word).map_err(|need| {
                    self.at = begin;
                    self.wrong(need)
                })?;
                self.add(input)
            }
        }
    }

    fn extreme(&mut self, extreme: Extreme) -> Result<Node, Malformed> {
        self.expect('(')?;
        let mut nodes = vec![self.sum()?];
        while self.take(&[',']).is_some() {
            nodes.push(self.sum()?);
        }
        self.expect(')')?;
        Ok(Node::Extreme(extreme, nodes))
    }

    fn scraped(&mut self, of: impl FnOnce(String) -> Metric) -> Result<Node, Malformed> {
        self.expect('(')?;
        self.skip_blanks();
        let begin = self.at;
        let word = self.word();
        match Metric::parse(&word) {
            Ok(Metric::Series(name)) => {
                self.expect(')')?;
                self.add(Input::Metric(of(name)))
            }
            _ => {
                self.at = begin;
                Err(self.wrong("name a scraped series here, such as vllm:num_requests_waiting"))
            }
        }
    }

    fn add(&mut self, input: Input) -> Result<Node, Malformed> {
        if let Some(known) = self.inputs.iter().position(|each| *each == input) {
            return Ok(Node::Input(known));
        }
        if self.inputs.len() == MAX_INPUTS {
            return Err(self.wrong(format!("read at most {MAX_INPUTS} signals and metrics")));
        }
        self.inputs.push(input);
        Ok(Node::Input(self.inputs.len() - 1))
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':')
}

/// What a word names. A scraped series stands for itself only with a colon in its name: a signal with a typing error would be taken for
/// one otherwise, and never have a value.
fn input(word: &str) -> Result<Input, String> {
    let lower = word.to_ascii_lowercase();
    if lower.starts_with("coppice_") || lower.contains(':') {
        return Metric::parse(&lower)
            .map(Input::Metric)
            .map_err(|error| error.to_string());
    }
    lower.parse::<Signal>().map(Input::Signal).map_err(|error| {
        format!("{error}; or a coppice_ metric; or series(NAME), rate(NAME) of a scraped series")
    })
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.write(f, &self.inputs, 0)
    }
}

impl Node {
    /// Writes it where operators bind with `strength`: 0 any, 1 products, 2 operands alone.
    fn write(&self, f: &mut fmt::Formatter<'_>, inputs: &[Input], strength: u8) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Input(index) => match inputs.get(*index) {
                Some(input) => write!(f, "{input}"),
                None => Err(fmt::Error),
            },
            Self::Binary(operator, sides) => {
                let (sign, own) = match operator {
                    Operator::Add => ("+", 0),
                    Operator::Subtract => ("-", 0),
                    Operator::Multiply => ("*", 1),
                    Operator::Divide => ("/", 1),
                };
                let [left, right] = sides.as_ref();
                let is_weaker = own < strength;
                f.write_str(if is_weaker { "(" } else { "" })?;
                left.write(f, inputs, own)?;
                write!(f, " {sign} ")?;
                right.write(f, inputs, own + 1)?;
                f.write_str(if is_weaker { ")" } else { "" })
            }
            Self::Extreme(extreme, nodes) => {
                f.write_str(match extreme {
                    Extreme::Min => "min(",
                    Extreme::Max => "max(",
                })?;
                for (index, node) in nodes.iter().enumerate() {
                    f.write_str(if index > 0 { ", " } else { "" })?;
                    node.write(f, inputs, 0)?;
                }
                f.write_str(")")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(text: &str, values: &[f64]) -> f64 {
        Expression::parse(text)
            .unwrap_or_else(|error| panic!("{text}: {error}"))
            .value(values)
    }

    #[test]
    fn operators_bind_as_in_arithmetic() {
        for (text, expected) in [
            ("waiting", 6.0),
            ("waiting + running * 2", 14.0),
            ("(waiting + running) * 2", 20.0),
            ("waiting - running - 1", 1.0),
            ("waiting / running / 2", 0.75),
            ("min(waiting, running, 5)", 4.0),
            ("max(waiting-running, 0) * 1e1", 20.0),
            (".5*waiting", 3.0),
        ] {
            let found = value(text, &[6.0, 4.0]);
            assert!((found - expected).abs() < 1e-9, "{text} is {found}");
        }
        assert!(!value("waiting / running", &[1.0, 0.0]).is_finite());
        assert!(value("max(waiting / running, 1)", &[0.0, 0.0]).is_nan());
    }

    #[test]
    fn each_input_is_read_once_in_any_case_and_series_by_their_names() {
        let read = Expression::parse(
            "Waiting + coppice_ttft_seconds_p95 + waiting + vllm:a:rate + series(tgi_queue_size) + rate(b)",
        )
        .unwrap();
        let names: Vec<_> = read.inputs().iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "waiting",
                "coppice_ttft_seconds_p95",
                "rate(vllm:a)",
                "series(tgi_queue_size)",
                "rate(b)"
            ]
        );
        assert_eq!(read.only_input(), None);
        assert!(
            Expression::parse("(waiting)")
                .unwrap()
                .only_input()
                .is_some()
        );
    }

    #[test]
    fn what_is_no_expression_is_refused_with_its_place() {
        let deep = format!("{}waiting{}", "(".repeat(17), ")".repeat(17));
        let many: Vec<_> = (0..17).map(|index| format!("a:{index}")).collect();
        for (text, expected) in [
            (
                "",
                "at character 1: write a signal, a metric, a number or a parenthesis here",
            ),
            (
                "waiting +",
                "at character 10: write a signal, a metric, a number or a parenthesis here",
            ),
            (
                "waiting running",
                "at character 9: write + - * / or nothing more here",
            ),
            ("(waiting", "at character 9: write ')' here"),
            (
                "1 + 2",
                "at character 1: read at least one signal or metric",
            ),
            (
                "waiting * 2x",
                "at character 11: write a number such as 2 or 0.5 here",
            ),
            (
                "waiting + 1e999",
                "at character 11: write a number such as 2 or 0.5 here",
            ),
            (
                "1 + avg(waiting)",
                "at character 5: \"avg\" is no function: use min, max, series or rate",
            ),
            ("series(a b)", "at character 10: write ')' here"),
            (
                "series(coppice_x)",
                "at character 8: name a scraped series here, such as vllm:num_requests_waiting",
            ),
            (
                "2 * coppice_x",
                "at character 5: metric \"coppice_x\" is not known: use one of the coppice_ metrics, or a scraped series by its own name",
            ),
            (&deep, "at character 17: nest at most 16 deep"),
            (
                &many.join("+"),
                "at character 75: read at most 16 signals and metrics",
            ),
            (&"1+".repeat(600), "at character 1: use at most 1024 bytes"),
        ] {
            let error = Expression::parse(text).unwrap_err().to_string();
            assert_eq!(error, expected, "{text}");
        }
        let error = Expression::parse("1 + waitng").unwrap_err().to_string();
        assert!(
            error.starts_with(
                "at character 5: signal \"waitng\" is not known: use one of running, waiting,"
            ) && error.ends_with("or series(NAME), rate(NAME) of a scraped series"),
            "{error}"
        );
    }

    fn text() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("waiting".to_owned()),
            Just("running".to_owned()),
            Just("rate(a:b)".to_owned()),
            (0_u32..100).prop_map(|number| format!("{}", f64::from(number) / 4.0)),
        ];
        leaf.prop_recursive(4, 24, 3, |inner| {
            prop_oneof![
                (inner.clone(), "[-+*/]", inner.clone())
                    .prop_map(|(left, sign, right)| format!("({left}){sign}({right})")),
                (inner.clone(), "[-+*/]", inner.clone())
                    .prop_map(|(left, sign, right)| format!("{left} {sign} {right}")),
                ("min|max", proptest::collection::vec(inner, 1..4))
                    .prop_map(|(name, parts)| format!("{name}({})", parts.join(","))),
            ]
        })
    }

    proptest! {
        #[test]
        fn an_expression_is_read_back_as_it_is_printed(text in text()) {
            let text = format!("waiting + {text}");
            let read = Expression::parse(&text).unwrap();
            let again = Expression::parse(&read.to_string()).unwrap();
            let values = vec![3.0; read.inputs().len()];
            let (one, other) = (read.value(&values), again.value(&values));
            prop_assert_eq!(read, again);
            prop_assert!(one.to_bits() == other.to_bits() || one.is_nan() && other.is_nan());
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,200}") {
            drop(Expression::parse(&text));
        }
    }
}
