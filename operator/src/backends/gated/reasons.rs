//! Why gangs wait, as their statuses say it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::ledger::Key;

/// How long a text stays although its numbers change: where gangs compete, the room changes with every pod that comes or
/// goes, and each change of a text is a write for every gang that waits.
const STAYS: SignedDuration = SignedDuration::from_secs(30);

/// Texts by gang.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    texts: Mutex<BTreeMap<Key, (String, Timestamp)>>,
}

impl Reasons {
    /// Why a gang waits.
    pub(super) fn of(&self, gang: &Key) -> Option<String> {
        self.texts.lock().get(gang).map(|(text, _)| text.clone())
    }

    /// Replaces all texts. Returns the gangs whose text is another one now, and when the next text may change.
    pub(super) fn publish(
        &self,
        current: Vec<(Key, String)>,
        now: Timestamp,
    ) -> (Vec<Key>, Option<Timestamp>) {
        let mut texts = self.texts.lock();
        let mut before = std::mem::take(&mut *texts);
        let (mut changed, mut next) = (Vec::new(), None);
        for (gang, text) in current {
            let entry = match before.remove(&gang) {
                Some((old, since)) if old != text => {
                    let due = since.saturating_add(STAYS).unwrap_or(now);
                    if due > now {
                        next = Some(next.map_or(due, |next: Timestamp| next.min(due)));
                        (old, since)
                    } else {
                        changed.push(gang.clone());
                        (text, now)
                    }
                }
                Some(same) => same,
                None => {
                    changed.push(gang.clone());
                    (text, now)
                }
            };
            texts.insert(gang, entry);
        }
        (changed, next)
    }

    /// Forgets everything: somebody else decides from now on.
    pub(super) fn clear(&self) {
        self.texts.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_text_changes_at_once_only_when_the_gang_is_new() {
        let reasons = Reasons::default();
        let gang: Key = (Arc::from("ml"), Arc::from("a-0"));
        let at = |second| Timestamp::from_second(second).unwrap();
        let says =
            |text: &str, second| reasons.publish(vec![(gang.clone(), text.to_owned())], at(second));
        assert_eq!(says("1 of 2", 0), (vec![gang.clone()], None));
        assert_eq!(says("1 of 2", 5), (vec![], None));
        assert_eq!(says("0 of 2", 10), (vec![], Some(at(30))));
        assert_eq!(reasons.of(&gang).as_deref(), Some("1 of 2"));
        assert_eq!(says("0 of 2", 30), (vec![gang.clone()], None));
        assert_eq!(reasons.of(&gang).as_deref(), Some("0 of 2"));
        assert_eq!(reasons.publish(vec![], at(31)), (vec![], None));
        assert_eq!(reasons.of(&gang), None);
    }
}
