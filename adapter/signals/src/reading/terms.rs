//! Terms of a source put together from left to right, for each model apart.

use super::Part;
use crate::channel::GaugeParts;
use crate::engines::Role;

/// Terms as they come, each model's channel of a term at a time.
///
/// A factor or divisor belongs to the term that was added last, and to the same model's part of it. One that names no model
/// belongs to every model's part, and a part that names no model takes every model's.
#[derive(Debug, Default)]
pub(super) struct Terms {
    done: Option<GaugeParts>,
    /// Each model's part of the term that was added last.
    addends: Vec<Addend>,
    is_undefined: bool,
}

/// What the terms come to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Total {
    Known(GaugeParts),
    /// There was nothing to add.
    Nothing,
    /// All there was is a share of zero.
    Undefined,
}

#[derive(Debug)]
struct Addend {
    model: Option<u16>,
    term: u16,
    role: Role,
    parts: GaugeParts,
    factor: Option<GaugeParts>,
    divisor: Option<GaugeParts>,
    is_of_each: bool,
    /// A factor or divisor is not there.
    lacks: bool,
}

impl Terms {
    /// Takes in a channel; without parts it is not in the last body.
    pub(super) fn take(&mut self, model: Option<u16>, part: Part, parts: Option<GaugeParts>) {
        if part.role.is_sum() {
            if self
                .addends
                .last()
                .is_some_and(|last| last.term != part.term)
            {
                self.finish();
            }
            if let Some(parts) = parts {
                self.addends.push(Addend {
                    model,
                    term: part.term,
                    role: part.role,
                    parts,
                    factor: None,
                    divisor: None,
                    is_of_each: false,
                    lacks: false,
                });
            }
            return;
        }
        for addend in &mut self.addends {
            if model.is_some() && addend.model.is_some() && model != addend.model {
                continue;
            }
            let Some(parts) = parts else {
                addend.lacks = true;
                continue;
            };
            let operand = match part.role {
                Role::Add | Role::Subtract => continue,
                Role::Factor => &mut addend.factor,
                Role::DivisorOfEach => {
                    addend.is_of_each = true;
                    &mut addend.divisor
                }
                Role::Divisor => &mut addend.divisor,
            };
            operand.get_or_insert(GaugeParts::NONE).add(parts);
        }
    }

    /// What they come to.
    pub(super) fn total(mut self) -> Total {
        self.finish();
        match self.done {
            Some(total) => Total::Known(total),
            None if self.is_undefined => Total::Undefined,
            None => Total::Nothing,
        }
    }

    fn finish(&mut self) {
        for addend in std::mem::take(&mut self.addends) {
            if addend.lacks {
                continue;
            }
            let Some(value) = addend.value() else {
                self.is_undefined = true;
                continue;
            };
            let done = self.done.get_or_insert(GaugeParts::NONE);
            match addend.role {
                Role::Subtract => done.sum -= value.sum,
                Role::Add | Role::Factor | Role::Divisor | Role::DivisorOfEach => done.add(value),
            }
        }
    }
}

impl Addend {
    /// `None` where it is divided by zero.
    fn value(&self) -> Option<GaugeParts> {
        let factor = self.factor.map_or(1.0, |factor| factor.max);
        let Some(divisor) = self.divisor else {
            return Some(GaugeParts {
                sum: self.parts.sum * factor,
                max: self.parts.max * factor,
                series: self.parts.series,
            });
        };
        let divisor = if self.is_of_each {
            divisor.max * f64::from(self.parts.series)
        } else {
            divisor.sum
        };
        (divisor > 0.0).then(|| GaugeParts::one(self.parts.sum * factor / divisor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn part(term: u16, role: Role) -> Part {
        Part {
            channel: 0,
            term,
            role,
        }
    }

    fn total(parts: &[(Option<u16>, u16, Role, f64)]) -> Total {
        let mut terms = Terms::default();
        for (model, term, role, value) in parts {
            let value = (!value.is_nan()).then(|| GaugeParts::one(*value));
            terms.take(*model, part(*term, *role), value);
        }
        terms.total()
    }

    fn sum(parts: &[(Option<u16>, u16, Role, f64)]) -> f64 {
        match total(parts) {
            Total::Known(total) => total.sum,
            other => panic!("{other:?}"),
        }
    }

    fn near(value: f64, expected: f64) {
        assert!(
            (value - expected).abs() < 1e-12,
            "{value} is not {expected}"
        );
    }

    #[test]
    fn a_factor_belongs_to_the_term_before_it_and_not_to_the_next() {
        near(
            sum(&[
                (None, 0, Role::Add, 20.0),
                (None, 1, Role::Factor, 3.0),
                (Some(0), 2, Role::Add, 145.0),
            ]),
            205.0,
        );
    }

    #[test]
    fn each_model_has_its_own_divisor() {
        let parts = [
            (Some(0), 0, Role::Add, 8.0),
            (Some(1), 0, Role::Add, 1.0),
            (Some(0), 1, Role::Divisor, 10.0),
            (Some(1), 1, Role::Divisor, 2.0),
        ];
        let Total::Known(total) = total(&parts) else {
            panic!("two shares")
        };
        near(total.sum, 1.3);
        near(total.max, 0.8);
        assert_eq!(total.series, 2);
    }

    #[test]
    fn a_share_of_zero_is_undefined_and_not_zero() {
        let parts = [(None, 0, Role::Add, 0.4), (None, 1, Role::Divisor, 0.0)];
        assert_eq!(total(&parts), Total::Undefined);
    }

    #[test]
    fn a_term_whose_factor_is_not_there_is_left_out() {
        let parts = [
            (None, 0, Role::Add, 20.0),
            (None, 1, Role::Factor, f64::NAN),
        ];
        assert_eq!(total(&parts), Total::Nothing);
        assert_eq!(total(&[]), Total::Nothing);
    }

    #[test]
    fn a_divisor_of_each_divides_by_the_number_of_series() {
        let mut terms = Terms::default();
        let three = GaugeParts {
            sum: 300.0,
            max: 200.0,
            series: 3,
        };
        terms.take(None, part(0, Role::Add), Some(three));
        terms.take(
            Some(0),
            part(1, Role::DivisorOfEach),
            Some(GaugeParts::one(50.0)),
        );
        let Total::Known(total) = terms.total() else {
            panic!("there is one")
        };
        near(total.sum, 2.0);
    }
}
