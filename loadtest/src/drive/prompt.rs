//! Prompts of an asked length.
//!
//! A prompt of n tokens is n common English words of four letters. A simulated engine that counts words counts exactly n; the
//! vocabularies of real models hold each of these words as one token, so they count nearly n (the server's `usage` tells,
//! and the summary shows both). All words have one width, so any stretch of text is a slice and making a prompt is copying.

use std::sync::LazyLock;

use crate::schedule::Prefix;
use crate::schedule::seed::mix;

/// Bytes of a word with the space after it.
const WIDTH: usize = 5;
/// Words of the common text; a power of two.
const TEXT_WORDS: usize = 1 << 16;
/// Words that name a group, a block or a request: 256⁴ of each can be told apart.
const NAME_WORDS: usize = 4;

const WORDS: &str = "able area army away baby back ball band bank base bear beat bell belt best bill bird blow blue boat body bone book born boss both bowl burn bush busy \
cake call calm camp card care case cash cell chef city clay club coal coat code cold cook cool copy core corn cost crew crop dark data date dawn deal dear deck deep \
desk diet dish disk door down draw drop drum dust duty each earn east easy edge else even ever exam face fact fair fall farm fast fear feed feel file fill film find \
fine fire firm fish five flag flat flow food foot form four free fuel full fund gain game gate gear gift girl give glad goal gold golf good gray grew grow hair half \
hall hand hang hard hate have head hear heat held help here hero high hill hold hole home hope host hour huge hunt idea inch iron item join jump jury just keep kick \
kind king knee know lack lady lake land lane last late lead leaf lean left less life lift like line link list live load loan lock long look lord lose loss lost love \
luck main make male many mark mass meal mean meat meet menu mind mine miss mode moon more most move much must name near neck need news next nice nine none";

/// Four-letter words and their spaces.
static TABLE: LazyLock<Vec<[u8; WIDTH]>> = LazyLock::new(|| {
    WORDS
        .split_ascii_whitespace()
        .map(|word| {
            let mut padded = [b' '; WIDTH];
            padded[..word.len()].copy_from_slice(word.as_bytes());
            padded
        })
        .collect()
});

/// The text that prompts are cut from.
static TEXT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut text = Vec::with_capacity(TEXT_WORDS * WIDTH);
    for position in 0..TEXT_WORDS {
        text.extend_from_slice(&TABLE[word(mix(position as u64), 0)]);
    }
    text
});

/// The `place`-th word number of a scrambled value.
fn word(value: u64, place: usize) -> usize {
    usize::from(value.to_le_bytes()[place]) % TABLE.len()
}

/// What makes this run's prompts differ from every other run's: a salt from the run's seed.
#[derive(Debug, Clone, Copy)]
pub struct Prompts {
    salt: u64,
}

impl Prompts {
    /// Prompts of the run with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { salt: mix(seed) }
    }

    /// Appends a prompt of `tokens` words to `out`: the shared beginning, then text that no other request of the run has.
    ///
    /// `request` tells requests apart. Needs no escaping inside a JSON string.
    pub fn write(&self, out: &mut Vec<u8>, tokens: u32, prefix: &Prefix, request: u64) {
        let total = usize::try_from(tokens).unwrap_or(usize::MAX);
        let start = out.len();
        out.reserve(total * WIDTH);
        match prefix {
            Prefix::None => {}
            Prefix::Shared { group, tokens } => {
                let shared = usize::try_from(*tokens).unwrap_or(usize::MAX).min(total);
                // Groups are the same in every run with one seed and differ between seeds, like requests.
                named_text(out, mix(self.salt ^ mix(*group) ^ 1), shared);
            }
            Prefix::Blocks(blocks) => {
                let block_words = usize::try_from(Prefix::BLOCK_TOKENS).unwrap_or(usize::MAX);
                for block in blocks {
                    let left = total - (out.len() - start) / WIDTH;
                    named_text(out, mix(self.salt ^ mix(*block) ^ 2), block_words.min(left));
                }
            }
        }
        let left = total - (out.len() - start) / WIDTH;
        named_text(out, mix(self.salt ^ mix(request) ^ 3), left);
        // The space after the last word.
        if out.len() > start {
            out.pop();
        }
    }
}

/// Appends `words` words: those of the name, then the common text from a place that the name gives.
fn named_text(out: &mut Vec<u8>, name: u64, words: usize) {
    let named = words.min(NAME_WORDS);
    for place in 0..named {
        out.extend_from_slice(&TABLE[word(name, place)]);
    }
    let mut left = words - named;
    let mut position = usize::try_from(name >> 48).unwrap_or(0) % TEXT_WORDS;
    while left > 0 {
        let taken = left.min(TEXT_WORDS - position);
        out.extend_from_slice(&TEXT[position * WIDTH..(position + taken) * WIDTH]);
        left -= taken;
        position = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(tokens: u32, prefix: &Prefix, request: u64) -> Vec<String> {
        let mut out = Vec::new();
        Prompts::new(1).write(&mut out, tokens, prefix, request);
        String::from_utf8(out)
            .unwrap()
            .split(' ')
            .map(str::to_owned)
            .collect()
    }

    fn common(a: &[String], b: &[String]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn the_vocabulary_is_distinct_words_of_one_width() {
        assert!(TABLE.len() >= 200, "{}", TABLE.len());
        let distinct: std::collections::BTreeSet<_> = TABLE.iter().collect();
        assert_eq!(distinct.len(), TABLE.len());
        assert!(
            TABLE
                .iter()
                .all(|word| word[..4].iter().all(u8::is_ascii_lowercase) && word[4] == b' ')
        );
    }

    #[test]
    fn a_prompt_has_as_many_words_as_asked() {
        for tokens in [1, 2, 4, 5, 100, 70_000] {
            assert_eq!(prompt(tokens, &Prefix::None, 7).len(), tokens as usize);
        }
        let blocks = Prefix::Blocks((0..3).collect());
        assert_eq!(prompt(1200, &blocks, 7).len(), 1200);
        assert_eq!(
            prompt(2000, &blocks, 7).len(),
            2000,
            "blocks that do not cover the prompt are filled up"
        );
    }

    #[test]
    fn different_requests_share_nothing_and_the_same_request_is_the_same() {
        assert!(
            common(
                &prompt(100, &Prefix::None, 1),
                &prompt(100, &Prefix::None, 2)
            ) < 4
        );
        assert_eq!(prompt(100, &Prefix::None, 1), prompt(100, &Prefix::None, 1));
    }

    #[test]
    fn a_group_shares_its_beginning_and_a_longer_beginning_contains_the_shorter() {
        let shared = |tokens| Prefix::Shared { group: 5, tokens };
        let (short, long) = (prompt(300, &shared(64), 1), prompt(300, &shared(200), 2));
        assert!((64..68).contains(&common(&short, &long)));
        let other = prompt(
            300,
            &Prefix::Shared {
                group: 6,
                tokens: 64,
            },
            3,
        );
        assert!(common(&short, &other) < 4);
    }

    #[test]
    fn equal_blocks_are_equal_text_until_the_first_that_differs() {
        let (a, b) = (
            Prefix::Blocks(Box::new([1, 2, 3])),
            Prefix::Blocks(Box::new([1, 2, 9])),
        );
        let shared = common(&prompt(1500, &a, 1), &prompt(1500, &b, 2));
        assert!((1024..1028).contains(&shared), "{shared}");
    }
}
