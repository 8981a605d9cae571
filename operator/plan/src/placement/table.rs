//! One gang and the nodes in numbers: only the resources that the gang asks for, and pods with equal needs together.

use super::needs::PodNeeds;
use super::node::{Node, Snapshot};
use super::place::Gang;
use super::reason::Obstacle;
use super::resources::is_extended;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Pods with equal needs, over all groups of the gang that share the same domains.
#[derive(Debug)]
pub(super) struct Class<'g> {
    pub(super) needs: &'g PodNeeds,
    /// Amount in each column of the table.
    pub(super) request: Vec<i64>,
    /// Positions of the groups in the gang.
    pub(super) groups: Vec<usize>,
    /// The innermost scope of all of them; see [`Gang::scope_of`].
    pub(super) scope: usize,
    /// Pods that have to be placed.
    pub(super) floor: u32,
    /// Largest part of a node's room that one pod takes, in thousandths.
    size: i64,
}

/// A node.
#[derive(Debug)]
pub(super) struct Row<'s> {
    pub(super) node: &'s Node,
    /// Room in each column of the table.
    pub(super) free: Vec<i64>,
    /// For each class, what keeps its pods off the node however empty it is.
    pub(super) obstacles: Vec<Option<Obstacle>>,
    /// For each class, how unwelcome its pods are: disliked taints, then kinds of scarce resources left idle beside it.
    pub(super) unwelcome: Vec<(usize, usize)>,
}

/// A gang and the nodes. Columns are the resources that the gang asks for, then pod slots.
#[derive(Debug)]
pub(super) struct Table<'s, 'g> {
    pub(super) resources: Vec<Arc<str>>,
    /// Largest pods first, because small ones fill what these leave.
    pub(super) classes: Vec<Class<'g>>,
    pub(super) rows: Vec<Row<'s>>,
    /// Most room that a node has, by column, `1..`: the scale on which amounts of different resources are compared.
    scale: Vec<i64>,
    /// For each class, the rows that its pods are confined to; nothing where no class is confined.
    confines: Vec<Vec<bool>>,
}

/// A pod takes one slot, in the thousandths that all columns have.
const SLOT: i64 = 1000;

impl<'s, 'g> Table<'s, 'g> {
    pub(super) fn new(snapshot: &'s Snapshot, gang: &'g Gang) -> Self {
        let asked = |group: &'g super::place::Group| {
            let positive = group.needs.requests.iter().filter(|(_, milli)| *milli > 0);
            positive.map(|(name, _)| Arc::clone(name))
        };
        let names: BTreeSet<Arc<str>> = gang.groups.iter().flat_map(asked).collect();
        let resources: Vec<Arc<str>> = names.into_iter().collect();
        let mut table = Self {
            resources,
            classes: Vec::new(),
            rows: Vec::new(),
            scale: Vec::new(),
            confines: Vec::new(),
        };
        table.add_classes(gang);
        table.rows = snapshot
            .nodes()
            .iter()
            .map(|node| table.row(node, gang))
            .collect();
        table.scale = (0..table.columns())
            .map(|column| table.largest(column))
            .collect();
        table.order_classes();
        table
    }

    /// Each group's class and position, by position.
    pub(super) fn classes_by_group(&self) -> Vec<(usize, usize)> {
        let of_class = |(class, of): (usize, &Class<'g>)| {
            of.groups
                .iter()
                .map(move |&group| (class, group))
                .collect::<Vec<_>>()
        };
        let mut all: Vec<(usize, usize)> =
            self.classes.iter().enumerate().flat_map(of_class).collect();
        all.sort_by_key(|(_, group)| *group);
        all
    }

    pub(super) fn columns(&self) -> usize {
        self.resources.len() + 1
    }

    fn add_classes(&mut self, gang: &'g Gang) {
        for (position, group) in gang.groups.iter().enumerate() {
            let scope = gang.scope_of(position);
            let is_alike = |class: &Class<'g>| class.scope == scope && *class.needs == group.needs;
            let class = match self.classes.iter().position(is_alike) {
                Some(class) => class,
                None => {
                    let amounts = self
                        .resources
                        .iter()
                        .map(|name| group.needs.requests.milli(name).max(0));
                    self.classes.push(Class {
                        needs: &group.needs,
                        request: amounts.chain([SLOT]).collect(),
                        groups: Vec::new(),
                        scope,
                        floor: 0,
                        size: 0,
                    });
                    self.classes.len() - 1
                }
            };
            self.classes[class].groups.push(position);
            self.classes[class].floor = self.classes[class].floor.saturating_add(group.floor);
        }
    }

    fn row(&self, node: &'s Node, gang: &Gang) -> Row<'s> {
        let amounts = self.resources.iter().map(|name| node.free.milli(name));
        let obstacle = |class: &Class<'_>| {
            if node.withheld {
                Some(Obstacle::Claimed)
            } else if gang.avoid.contains(&node.shape.name) {
                Some(Obstacle::Refused)
            } else {
                class.needs.obstacle(&node.shape)
            }
        };
        let idle = |class: &Class<'_>| {
            let is_left_idle = |(name, milli): &(&Arc<str>, i64)| {
                *milli > 0 && is_extended(name) && class.needs.requests.milli(name) == 0
            };
            node.free.iter().filter(is_left_idle).count()
        };
        let unwelcome = |class: &Class<'_>| (class.needs.disliked_taints(&node.shape), idle(class));
        Row {
            node,
            free: amounts.chain([i64::from(node.free_slots) * SLOT]).collect(),
            obstacles: self.classes.iter().map(obstacle).collect(),
            unwelcome: self.classes.iter().map(unwelcome).collect(),
        }
    }

    /// Most room that a node has in a column.
    pub(super) fn scale(&self, column: usize) -> i64 {
        self.scale[column]
    }

    fn largest(&self, column: usize) -> i64 {
        self.rows
            .iter()
            .map(|row| row.free[column])
            .max()
            .unwrap_or(0)
            .max(1)
    }

    fn order_classes(&mut self) {
        for class in &mut self.classes {
            let parts = class.request.iter().zip(&self.scale);
            class.size = parts
                .map(|(amount, scale)| part(*amount, *scale))
                .max()
                .unwrap_or(0);
        }
        let mut order: Vec<usize> = (0..self.classes.len()).collect();
        order.sort_by_key(|&class| (std::cmp::Reverse(self.classes[class].size), class));
        for row in &mut self.rows {
            row.obstacles = order
                .iter()
                .map(|&class| row.obstacles[class].clone())
                .collect();
            row.unwelcome = order.iter().map(|&class| row.unwelcome[class]).collect();
        }
        self.classes
            .sort_by_key(|class| (std::cmp::Reverse(class.size), class.groups[0]));
    }

    /// Whether a pod of the class may go to the row's node and fits into `free`.
    pub(super) fn fits(&self, class: usize, row: usize, free: &[i64]) -> bool {
        !self.is_kept_off(class, row) && self.shortest(class, free).is_none()
    }

    /// Whether pods of the class may not go to the row's node however empty it is.
    pub(super) fn is_kept_off(&self, class: usize, row: usize) -> bool {
        self.rows[row].obstacles[class].is_some()
            || self.confines.get(class).is_some_and(|rows| !rows[row])
    }

    /// Confines the pods of each class to the rows of its scope, and returns the rows that are left to any of them.
    pub(super) fn confine<'r>(&mut self, rows_of: impl Fn(usize) -> &'r [usize]) -> Vec<usize> {
        let mut any = vec![false; self.rows.len()];
        self.confines = Vec::with_capacity(self.classes.len());
        for class in &self.classes {
            let mut own = vec![false; self.rows.len()];
            for &row in rows_of(class.scope) {
                (own[row], any[row]) = (true, true);
            }
            self.confines.push(own);
        }
        (0..any.len()).filter(|&row| any[row]).collect()
    }

    /// Lets every pod go everywhere again.
    pub(super) fn set_free(&mut self) {
        self.confines.clear();
    }

    /// The first column in which `free` is too little for a pod of the class.
    pub(super) fn shortest(&self, class: usize, free: &[i64]) -> Option<usize> {
        // A column that the pod does not ask for may be overfull.
        let is_short = |(amount, free): (&i64, &i64)| *amount > 0 && amount > free;
        self.classes[class]
            .request
            .iter()
            .zip(free)
            .position(is_short)
    }

    /// Pods of the class that the row's node takes when it takes nothing else.
    pub(super) fn capacity(&self, class: usize, row: usize) -> u32 {
        if self.is_kept_off(class, row) {
            return 0;
        }
        self.room_for(class, &self.rows[row].free)
    }

    /// Pods of the class that fit into `free`.
    pub(super) fn room_for(&self, class: usize, free: &[i64]) -> u32 {
        let columns = self.classes[class].request.iter().zip(free);
        let counts = columns
            .filter(|(amount, _)| **amount > 0)
            .map(|(amount, free)| free.max(&0) / amount);
        counts
            .min()
            .map_or(u32::MAX, |count| u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// What is left of `free` after a pod of the class, in thousandths of the largest node, over what the pod asks for.
    pub(super) fn slack(&self, class: usize, free: &[i64]) -> i64 {
        let columns = self.classes[class]
            .request
            .iter()
            .zip(free)
            .zip(&self.scale);
        let asked = columns.filter(|((amount, _), _)| **amount > 0);
        asked
            .map(|((amount, free), scale)| part(free.saturating_sub(*amount), *scale))
            .sum()
    }

    /// What the floors of some classes take in a column.
    pub(super) fn demand(&self, classes: impl Iterator<Item = usize>, column: usize) -> i128 {
        let of = |class: usize| {
            let class = &self.classes[class];
            i128::from(class.request[column]) * i128::from(class.floor)
        };
        classes.map(of).sum()
    }

    /// What rows have free in a column.
    pub(super) fn supply(&self, rows: &[usize], column: usize) -> i128 {
        let free = |&row: &usize| i128::from(self.rows[row].free[column].max(0));
        rows.iter().map(free).sum()
    }

    /// The column of which the gang's floor takes the largest part of what all rows have.
    pub(super) fn scarcest(&self) -> usize {
        let demand = |column: usize| self.demand(0..self.classes.len(), column);
        let supply = |column: usize| -> i128 {
            self.rows
                .iter()
                .map(|row| i128::from(row.free[column].max(0)))
                .sum::<i128>()
                .max(1)
        };
        let share = |column: usize| demand(column).saturating_mul(1_000_000) / supply(column);
        (0..self.columns())
            .max_by_key(|&column| (share(column), std::cmp::Reverse(column)))
            .unwrap_or(0)
    }
}

/// `amount` in thousandths of `of`.
pub(super) fn part(amount: i64, of: i64) -> i64 {
    i64::try_from(i128::from(amount) * 1000 / i128::from(of)).unwrap_or(i64::MAX)
}
