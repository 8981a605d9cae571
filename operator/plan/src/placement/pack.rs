//! Fills nodes one pod at a time, each where it leaves least behind.

use super::table::Table;

/// Some rows of a table, and the room left on them.
#[derive(Clone, Debug)]
pub(super) struct Room {
    rows: Vec<usize>,
    free: Vec<Vec<i64>>,
}

/// For each class, the rows that its pods go to; a row stands once for each pod.
pub(super) type Assignment = Vec<Vec<usize>>;

impl Room {
    pub(super) fn new(table: &Table<'_, '_>, rows: &[usize]) -> Self {
        Self {
            rows: rows.to_vec(),
            free: rows
                .iter()
                .map(|&row| table.rows[row].free.clone())
                .collect(),
        }
    }

    /// All rows; each is its own position.
    pub(super) fn everywhere(table: &Table<'_, '_>) -> Self {
        let rows: Vec<usize> = (0..table.rows.len()).collect();
        Self::new(table, &rows)
    }

    /// Gives a pod of the class the room where it fits best, and returns the row.
    ///
    /// Best is the node with the fewest disliked taints, then the one that leaves the fewest kinds of scarce resources
    /// idle (a pod without GPU stays off GPU nodes), then the fullest, then the first by name.
    pub(super) fn take(&mut self, table: &Table<'_, '_>, class: usize) -> Option<usize> {
        self.take_at(table, class, 0..self.rows.len())
    }

    /// Likewise at some of the positions in the rows only. In a room of all rows a row is its own position.
    pub(super) fn take_at(
        &mut self,
        table: &Table<'_, '_>,
        class: usize,
        positions: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        let fits =
            |position: &usize| table.fits(class, self.rows[*position], &self.free[*position]);
        let position = positions.filter(fits).min_by_key(|&position| {
            (
                table.rows[self.rows[position]].unwelcome[class],
                table.slack(class, &self.free[position]),
                self.rows[position],
            )
        })?;
        self.subtract(table, class, position);
        Some(self.rows[position])
    }

    /// Takes a pod of the class away again.
    pub(super) fn put_back(&mut self, table: &Table<'_, '_>, class: usize, position: usize) {
        for (free, amount) in self.free[position]
            .iter_mut()
            .zip(&table.classes[class].request)
        {
            *free += amount;
        }
    }

    /// What is left in a column at some positions.
    pub(super) fn left(&self, positions: &[usize], column: usize) -> i128 {
        positions
            .iter()
            .map(|&position| i128::from(self.free[position][column].max(0)))
            .sum()
    }

    fn subtract(&mut self, table: &Table<'_, '_>, class: usize, position: usize) {
        for (free, amount) in self.free[position]
            .iter_mut()
            .zip(&table.classes[class].request)
        {
            *free -= amount;
        }
    }
}

/// Places the floor greedily, largest pods first.
pub(super) fn pack(table: &Table<'_, '_>, room: &mut Room) -> Option<Assignment> {
    let mut assignment = vec![Vec::new(); table.classes.len()];
    for (class, rows) in assignment.iter_mut().enumerate() {
        for _ in 0..table.classes[class].floor {
            rows.push(room.take(table, class)?);
        }
    }
    Some(assignment)
}
