//! Kubernetes label selectors: the text grammar and matching.
//!
//! The whole grammar of the API server, `>` and `<` included. A selector matches when all its requirements do; an empty
//! one matches everything.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A conjunction of requirements on labels.
///
/// Two selectors are equal when they have the same requirements in the same order; [`Selector::from_str`] sorts them,
/// so texts that differ only in order parse to equal selectors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// One requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// What is required of it.
    pub test: Test,
}

/// What a requirement asks of its label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Test {
    /// Present, with one of these values (`k=v`, `k==v`, `k in (a,b)`).
    In(BTreeSet<String>),
    /// Absent, or with another value (`k!=v`, `k notin (a,b)`).
    NotIn(BTreeSet<String>),
    /// Present (`k`).
    Exists,
    /// Absent (`!k`).
    DoesNotExist,
    /// Present, and a whole number above this (`k>5`).
    GreaterThan(i64),
    /// Present, and a whole number below this (`k<5`).
    LessThan(i64),
}

/// A selector text that does not follow the grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("label selector {text:?}: {problem} at character {at}")]
pub struct InvalidSelector {
    /// The text as given, cut to 200 characters.
    pub text: String,
    /// Position of the problem, in characters from 1.
    pub at: usize,
    /// What is wrong there.
    pub problem: String,
}

impl Selector {
    /// The selector that matches everything.
    #[must_use]
    pub const fn everything() -> Self {
        Self {
            requirements: Vec::new(),
        }
    }

    /// Whether it matches everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements, in order.
    #[must_use]
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Adds `key=value`.
    #[must_use]
    pub fn and_equals(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.requirements.push(Requirement {
            key: key.into(),
            test: Test::In(BTreeSet::from([value.into()])),
        });
        self.requirements.sort();
        self
    }

    /// Whether all requirements hold, where `value_of` gives the value of a label, or `None` where it is absent.
    pub fn matches<'a>(&self, value_of: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.test.holds(value_of(&requirement.key)))
    }
}

impl FromIterator<Requirement> for Selector {
    fn from_iter<T: IntoIterator<Item = Requirement>>(requirements: T) -> Self {
        let mut requirements: Vec<_> = requirements.into_iter().collect();
        requirements.sort();
        Self { requirements }
    }
}

impl Test {
    /// Whether it holds for a label with this value, `None` for an absent label.
    #[must_use]
    pub fn holds(&self, value: Option<&str>) -> bool {
        let number = |limit: &dyn Fn(i64) -> bool| {
            value
                .and_then(|value| value.parse().ok())
                .is_some_and(limit)
        };
        match self {
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::GreaterThan(limit) => number(&|value| value > *limit),
            Self::LessThan(limit) => number(&|value| value < *limit),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            fmt::Display::fmt(requirement, f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let set = |f: &mut fmt::Formatter<'_>, word: &str, values: &BTreeSet<String>| {
            write!(f, "{key} {word} (")?;
            for (index, value) in values.iter().enumerate() {
                write!(f, "{}{value}", if index > 0 { "," } else { "" })?;
            }
            f.write_str(")")
        };
        match &self.test {
            Test::In(values) if values.len() == 1 => {
                write!(f, "{key}={}", values.first().map_or("", String::as_str))
            }
            Test::In(values) => set(f, "in", values),
            Test::NotIn(values) if values.len() == 1 => {
                write!(f, "{key}!={}", values.first().map_or("", String::as_str))
            }
            Test::NotIn(values) => set(f, "notin", values),
            Test::Exists => f.write_str(key),
            Test::DoesNotExist => write!(f, "!{key}"),
            Test::GreaterThan(limit) => write!(f, "{key}>{limit}"),
            Test::LessThan(limit) => write!(f, "{key}<{limit}"),
        }
    }
}

impl FromStr for Selector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parser = Parser { text, position: 0 };
        let mut requirements = Vec::new();
        parser.skip_blanks();
        if parser.peek().is_none() {
            return Ok(Self::everything());
        }
        loop {
            requirements.push(parser.requirement()?);
            parser.skip_blanks();
            match parser.peek() {
                None => break,
                Some(',') => parser.advance(),
                Some(other) => {
                    return Err(
                        parser.problem(format!("expected a comma or the end, found {other:?}"))
                    );
                }
            }
        }
        Ok(requirements.into_iter().collect())
    }
}

struct Parser<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.position..].chars().next()
    }

    fn advance(&mut self) {
        self.position += self.peek().map_or(0, char::len_utf8);
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.advance();
        }
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.text[self.position..].starts_with(token);
        if found {
            self.position += token.len();
        }
        found
    }

    fn word(&mut self) -> &'a str {
        self.skip_blanks();
        let rest = &self.text[self.position..];
        let end = rest
            .find(|c: char| {
                c.is_whitespace() || matches!(c, ',' | '=' | '!' | '(' | ')' | '<' | '>')
            })
            .unwrap_or(rest.len());
        self.position += end;
        &rest[..end]
    }

    fn problem(&self, problem: String) -> InvalidSelector {
        InvalidSelector {
            text: self.text.chars().take(200).collect(),
            at: self.text[..self.position].chars().count() + 1,
            problem,
        }
    }

    fn requirement(&mut self) -> Result<Requirement, InvalidSelector> {
        self.skip_blanks();
        let absent = self.take("!");
        let key = self.key()?;
        self.skip_blanks();
        let test = if absent {
            Test::DoesNotExist
        } else if self.take("==") || self.take("=") {
            Test::In(BTreeSet::from([self.value()?]))
        } else if self.take("!=") {
            Test::NotIn(BTreeSet::from([self.value()?]))
        } else if self.take(">") {
            Test::GreaterThan(self.number()?)
        } else if self.take("<") {
            Test::LessThan(self.number()?)
        } else if matches!(self.peek(), None | Some(',')) {
            Test::Exists
        } else {
            let before = self.position;
            match self.word() {
                "in" => Test::In(self.set()?),
                "notin" => Test::NotIn(self.set()?),
                other => {
                    self.position = before;
                    return Err(self.problem(format!(
                        "expected one of = == != in notin < > after the key {key:?}, found {other:?}"
                    )));
                }
            }
        };
        Ok(Requirement { key, test })
    }

    fn key(&mut self) -> Result<String, InvalidSelector> {
        self.skip_blanks();
        let before = self.position;
        let key = self.word();
        let (prefix, name) = key
            .split_once('/')
            .map_or((None, key), |(prefix, name)| (Some(prefix), name));
        let valid_prefix = prefix.is_none_or(|prefix| {
            prefix.len() <= 253
                && prefix.split('.').all(|label| {
                    is_word(
                        label,
                        |c| c.is_ascii_lowercase() || c.is_ascii_digit(),
                        |c| c == '-',
                    )
                })
        });
        if key.is_empty()
            || !valid_prefix
            || name.len() > 63
            || !is_word(name, |c| c.is_ascii_alphanumeric(), is_inner)
        {
            self.position = before;
            return Err(self.problem(format!(
                "{key:?} is not a label key (an optional DNS prefix and a slash, then at most 63 letters, digits, '-', '_' or '.')"
            )));
        }
        Ok(key.to_owned())
    }

    fn value(&mut self) -> Result<String, InvalidSelector> {
        self.skip_blanks();
        let before = self.position;
        let value = self.word();
        if value.len() > 63
            || !(value.is_empty() || is_word(value, |c| c.is_ascii_alphanumeric(), is_inner))
        {
            self.position = before;
            return Err(self.problem(format!(
                "{value:?} is not a label value (at most 63 letters, digits, '-', '_' or '.'; for model names use model_id)"
            )));
        }
        Ok(value.to_owned())
    }

    fn number(&mut self) -> Result<i64, InvalidSelector> {
        self.skip_blanks();
        let before = self.position;
        let word = self.word();
        word.parse().map_err(|_| {
            self.position = before;
            self.problem(format!("{word:?} is not a whole number of 64 bits"))
        })
    }

    fn set(&mut self) -> Result<BTreeSet<String>, InvalidSelector> {
        self.skip_blanks();
        if !self.take("(") {
            return Err(self.problem("expected '(' before the set of values".to_owned()));
        }
        let mut values = BTreeSet::new();
        loop {
            values.insert(self.value()?);
            self.skip_blanks();
            if self.take(")") {
                return Ok(values);
            }
            if !self.take(",") {
                return Err(self.problem("expected ',' or ')' in the set of values".to_owned()));
            }
        }
    }
}

const fn is_inner(c: char) -> bool {
    matches!(c, '-' | '_' | '.')
}

/// Whether `text` starts and ends with an outer character and has only outer and inner ones between.
fn is_word(text: &str, outer: impl Fn(char) -> bool, inner: impl Fn(char) -> bool) -> bool {
    !text.is_empty()
        && text.starts_with(&outer)
        && text.chars().next_back().is_some_and(&outer)
        && text.chars().all(|c| outer(c) || inner(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let selector: Selector = selector.parse().unwrap();
        selector.matches(|key| {
            labels
                .iter()
                .find(|(name, _)| *name == key)
                .map(|(_, value)| *value)
        })
    }

    #[test]
    fn each_form_matches_as_the_api_server_does() {
        let labels = [
            ("app", "vllm"),
            ("grove.io/podclique", "decode"),
            ("rank", "7"),
            ("empty", ""),
        ];
        for (selector, expected) in [
            ("", true),
            ("  ", true),
            ("app=vllm", true),
            ("app==vllm", true),
            ("app = vllm , rank", true),
            ("app=sglang", false),
            ("app!=sglang", true),
            ("missing!=x", true),
            ("app in (vllm, sglang)", true),
            ("app in(sglang)", false),
            ("app notin (sglang)", true),
            ("missing notin (a)", true),
            ("missing in (a)", false),
            ("grove.io/podclique=decode", true),
            ("!missing", true),
            ("!app", false),
            ("rank>6", true),
            ("rank>7", false),
            ("rank<8", true),
            ("app>1", false),
            ("missing<1", false),
            ("empty=", true),
            ("empty in ()", true),
            ("empty in (,)", true),
            ("app in (in,vllm)", true),
            ("app=vllm,rank=8", false),
        ] {
            assert_eq!(matches(selector, &labels), expected, "{selector}");
        }
    }

    #[test]
    fn what_the_api_server_refuses_is_refused_with_its_place() {
        for (selector, at) in [
            ("=x", 1),
            ("app=vllm,", 10),
            (",app", 1),
            ("app in vllm", 8),
            ("app in (a", 10),
            ("app in (a))", 11),
            ("app like x", 5),
            ("_x=1", 1),
            ("app=meta-llama/Llama", 5),
            ("rank>many", 6),
            ("vllm:running=1", 1),
            ("UPPER.io/x=1", 1),
            ("app=a b", 7),
            ("!app=x", 5),
        ] {
            let error = selector.parse::<Selector>().unwrap_err();
            assert_eq!(error.at, at, "{selector}: {error}");
        }
        let long = format!("app={}", "x".repeat(64));
        assert!(long.parse::<Selector>().is_err());
    }

    #[test]
    fn printing_and_parsing_agree_and_order_does_not_matter() {
        let selector: Selector = "a=1,b!=2,c in (x,y),d notin (p,q),!e,f,g>4,h<9,i="
            .parse()
            .unwrap();
        assert_eq!(selector.to_string().parse::<Selector>().unwrap(), selector);
        assert_eq!(
            "b=2,a=1".parse::<Selector>().unwrap(),
            "a=1,b=2".parse().unwrap()
        );
    }
}
