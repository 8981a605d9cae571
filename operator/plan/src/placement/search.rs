//! Finds a place for a floor where filling greedily finds none, or proves that there is none.
//!
//! Nodes are taken one after the other. For each, only the fullest mixtures of pods are tried: a mixture that leaves
//! out a pod which would still fit and is still to be placed can never do better. What is left to place after a node
//! decides everything that follows, so a pair of node and remainder that failed once is not tried again. A remainder
//! that the nodes ahead cannot take, class by class or resource by resource, is given up at once.

use super::pack::Assignment;
use super::table::Table;
use std::collections::BTreeSet;

/// What a search came to.
#[derive(Debug)]
pub(super) enum Found {
    /// A place for every pod.
    Place(Assignment),
    /// There is none.
    Nothing,
    /// Not known: the effort was used up.
    Unknown,
}

struct Search<'t, 's, 'g> {
    table: &'t Table<'s, 'g>,
    /// Rows that at least one class may use.
    rows: Vec<usize>,
    /// For each position in `rows`, pods of each class that the nodes from there on take at most.
    capacity_ahead: Vec<Vec<u64>>,
    /// For each position in `rows`, the room in each column from there on.
    free_ahead: Vec<Vec<i128>>,
    failed: BTreeSet<(usize, Vec<u32>)>,
    effort: u64,
}

/// A node whose mixtures are being tried.
struct Level {
    remaining: Vec<u32>,
    mixtures: Vec<Vec<u32>>,
    next: usize,
}

/// Searches `rows` for a place for the floor. Each mixture and each node tried costs one of `effort`.
pub(super) fn search(table: &Table<'_, '_>, rows: &[usize], effort: &mut u64) -> Found {
    let usable =
        |row: &&usize| (0..table.classes.len()).any(|class| table.capacity(class, **row) > 0);
    let rows: Vec<usize> = rows.iter().filter(usable).copied().collect();
    let mut search = Search {
        table,
        capacity_ahead: Vec::new(),
        free_ahead: Vec::new(),
        rows,
        failed: BTreeSet::new(),
        effort: *effort,
    };
    search.look_ahead();
    let found = search.run();
    *effort = search.effort;
    found
}

impl Search<'_, '_, '_> {
    fn look_ahead(&mut self) {
        let mut capacity = vec![0; self.table.classes.len()];
        let mut free = vec![0; self.table.columns()];
        self.capacity_ahead.push(capacity.clone());
        self.free_ahead.push(free.clone());
        for &row in self.rows.iter().rev() {
            for (class, sum) in capacity.iter_mut().enumerate() {
                *sum += u64::from(self.table.capacity(class, row));
            }
            for (sum, amount) in free.iter_mut().zip(&self.table.rows[row].free) {
                *sum += i128::from(*amount.max(&0));
            }
            self.capacity_ahead.push(capacity.clone());
            self.free_ahead.push(free.clone());
        }
        self.capacity_ahead.reverse();
        self.free_ahead.reverse();
    }

    /// Depth first, with a stack of its own: as deep as there are nodes.
    fn run(&mut self) -> Found {
        let floor: Vec<u32> = self.table.classes.iter().map(|class| class.floor).collect();
        let Some(first) = self.enter(0, floor) else {
            return if self.effort == 0 {
                Found::Unknown
            } else {
                Found::Nothing
            };
        };
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            if level.remaining.iter().all(|count| *count == 0) {
                return Found::Place(self.assignment(&levels));
            }
            let Some(mixture) = level.mixtures.get(level.next) else {
                let remaining = std::mem::take(&mut level.remaining);
                levels.pop();
                self.failed.insert((levels.len(), remaining));
                continue;
            };
            level.next += 1;
            let remaining = level
                .remaining
                .iter()
                .zip(mixture)
                .map(|(count, placed)| count - placed)
                .collect();
            let depth = levels.len();
            match self.enter(depth, remaining) {
                Some(level) => levels.push(level),
                None if self.effort == 0 => return Found::Unknown,
                None => {}
            }
        }
        Found::Nothing
    }

    /// The mixtures to try on the node at `position`, or nothing when no mixture can lead anywhere or effort is up.
    fn enter(&mut self, position: usize, remaining: Vec<u32>) -> Option<Level> {
        self.effort = self.effort.saturating_sub(1);
        if self.effort == 0
            || !self.may_fit(position, &remaining)
            || self.failed.contains(&(position, remaining.clone()))
        {
            return None;
        }
        let mut mixtures = Vec::new();
        if let Some(&row) = self.rows.get(position) {
            let free = self.table.rows[row].free.clone();
            self.collect(row, &remaining, &mut Vec::new(), &free, &mut mixtures);
            if self.effort == 0 {
                return None;
            }
        }
        Some(Level {
            remaining,
            mixtures,
            next: 0,
        })
    }

    fn may_fit(&self, position: usize, remaining: &[u32]) -> bool {
        let capacities = remaining.iter().zip(&self.capacity_ahead[position]);
        let each_fits = capacities
            .into_iter()
            .all(|(count, capacity)| u64::from(*count) <= *capacity);
        let demand = |column: usize| -> i128 {
            let classes = self.table.classes.iter().zip(remaining);
            classes
                .map(|(class, count)| i128::from(class.request[column]) * i128::from(*count))
                .sum()
        };
        each_fits
            && self.free_ahead[position]
                .iter()
                .enumerate()
                .all(|(column, free)| demand(column) <= *free)
    }

    /// Collects the fullest mixtures for a node, most of the largest class first.
    fn collect(
        &mut self,
        row: usize,
        remaining: &[u32],
        chosen: &mut Vec<u32>,
        free: &[i64],
        into: &mut Vec<Vec<u32>>,
    ) {
        let class = chosen.len();
        if self.effort == 0 {
            return;
        }
        if class == remaining.len() {
            self.effort -= 1;
            let could_take_more = |class: usize| {
                chosen[class] < remaining[class] && self.table.fits(class, row, free)
            };
            if !(0..class).any(could_take_more) {
                into.push(chosen.clone());
            }
            return;
        }
        let most = if self.table.is_kept_off(class, row) {
            0
        } else {
            self.table.room_for(class, free).min(remaining[class])
        };
        for count in (0..=most).rev() {
            let request = &self.table.classes[class].request;
            let left: Vec<i64> = free
                .iter()
                .zip(request)
                .map(|(free, amount)| free - amount * i64::from(count))
                .collect();
            chosen.push(count);
            self.collect(row, remaining, chosen, &left, into);
            chosen.pop();
        }
    }

    fn assignment(&self, levels: &[Level]) -> Assignment {
        let mut assignment = vec![Vec::new(); self.table.classes.len()];
        for (position, level) in levels.iter().enumerate() {
            let Some(mixture) = level
                .next
                .checked_sub(1)
                .and_then(|chosen| level.mixtures.get(chosen))
            else {
                continue;
            };
            for (class, count) in mixture.iter().enumerate() {
                assignment[class].extend(std::iter::repeat_n(self.rows[position], *count as usize));
            }
        }
        assignment
    }
}
