//! Faults that a test injects into a fake.
//!
//! In: rules that say which requests fail, and how. Out: the fault for a request, if a rule applies. This module never
//! changes a cloud's state.

use std::time::Duration;

use super::call::{Refusal, Route};

/// A fault of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The fake never sees the request. The caller sees a closed connection.
    LoseRequest,
    /// The fake handles the request, but the answer is lost.
    LoseReply,
    /// The answer arrives late.
    Delay(Duration),
    /// The service cuts the answer's body in half.
    Truncate,
    /// The fake refuses the request.
    Refuse(Refusal),
    /// The fake accepts the operation that the request starts. The operation fails when it ends.
    FailLate,
    /// The operation that the request starts ends at once, before operations that started earlier.
    Overtake,
}

/// Which requests a fault applies to.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The name of the call, or `None` for any call.
    pub call: Option<&'static str>,
    /// How many matching requests succeed first.
    pub skip: usize,
    /// How many matching requests fail after that.
    pub times: usize,
    /// The fault of those requests.
    pub fault: Fault,
}

impl Rule {
    /// Applies the fault to the next request of the named call.
    pub fn next(call: &'static str, fault: Fault) -> Self {
        Self { call: Some(call), skip: 0, times: 1, fault }
    }

    /// Applies the fault to every request from now on.
    pub fn always(fault: Fault) -> Self {
        Self { call: None, skip: 0, times: usize::MAX, fault }
    }
}

/// The rules that have not been used up.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
}

impl Faults {
    pub(crate) fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// Returns the fault for this request, if any, and uses up one application of the first rule that matches. Faults
    /// of operations do not apply to a read, because a read starts no operation.
    pub(crate) fn next(&mut self, route: &Route, only_reads: bool) -> Option<Fault> {
        let applies = |rule: &&mut Rule| {
            let is_of_operation = matches!(rule.fault, Fault::FailLate | Fault::Overtake);
            rule.call.is_none_or(|call| call == route.name) && !(is_of_operation && only_reads)
        };
        let rule = self.rules.iter_mut().find(applies)?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.times -= 1;
        let fault = rule.fault.clone();
        self.rules.retain(|rule| rule.times > 0);
        Some(fault)
    }

    /// Removes all rules.
    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }
}
