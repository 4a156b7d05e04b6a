//! What can be made to go wrong, on request.

use std::time::Duration;

use super::call::{Refusal, Route};

/// Something that goes wrong with one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request never arrives; the caller sees a closed connection.
    LoseRequest,
    /// The request is carried out and the answer is lost.
    LoseReply,
    /// The answer comes late.
    Delay(Duration),
    /// The answer's body is cut in half.
    Truncate,
    /// The request is refused.
    Refuse(Refusal),
    /// The operation that the request starts is accepted and fails when it ends.
    FailLate,
    /// The operation that the request starts ends at once, before those that began earlier.
    Overtake,
}

/// Which requests a fault strikes.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The call that is struck, or any.
    pub call: Option<&'static str>,
    /// How many such requests pass unharmed first.
    pub skip: usize,
    /// How many are struck then.
    pub times: usize,
    /// What happens to them.
    pub fault: Fault,
}

impl Rule {
    /// Strikes the next request of the named call.
    pub fn next(call: &'static str, fault: Fault) -> Self {
        Self { call: Some(call), skip: 0, times: 1, fault }
    }

    /// Strikes every request of every call from now on.
    pub fn always(fault: Fault) -> Self {
        Self { call: None, skip: 0, times: usize::MAX, fault }
    }
}

/// The faults that are still to strike.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
}

impl Faults {
    pub(crate) fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// The fault for this request, if any. The first rule that applies is used up by one: what is about operations does not
    /// apply to a request that only reads, and starts none.
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

    /// Lets everything go right again.
    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }
}
