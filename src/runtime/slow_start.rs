//! Many equal calls to the API server: first one, then more at a time with every success, none after a failure that concerns
//! the others too.
//!
//! A failure mostly concerns all objects: an exhausted quota costs one refused call, not a thousand. The client itself waits
//! after a 429 (Retry-After), so such answers need no care here.

use futures::{StreamExt, stream::FuturesUnordered};

/// Calls at the same time. Each has a connection of its own, which costs memory on both sides: at five milliseconds for an
/// answer these are nearly ten thousand requests a second.
pub const MOST: usize = 48;

/// Pods that a pass takes out of service before it looks at all Pods again. Looking costs a large workload a tenth of a
/// second and more, and the slowest of the calls is waited for each time; the longer the wave, the older is what its last
/// Pods were chosen by.
pub const WAVE: usize = 4 * MOST;

/// Failures of single items in a row, after which no others are tried.
const MOST_REFUSED: usize = 8;

/// Calls `call` for each item, `window` at a time at first; returns how many succeeded, and the first failure. The window
/// goes on growing in the next call that gets it; after a failure it is closed again. `is_of_one` says of a failure that it
/// concerns this item alone: the others are tried all the same, one at a time.
pub async fn slow_start<T, E, F>(
    items: Vec<T>,
    window: &mut usize,
    is_of_one: impl Fn(&E) -> bool,
    call: impl Fn(T) -> F,
) -> (usize, Option<E>)
where
    F: Future<Output = Result<(), E>>,
{
    *window = (*window).clamp(1, MOST);
    let (mut done, mut failure, mut refused, mut is_over) = (0, None, 0, false);
    let mut items = items.into_iter();
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < *window && !is_over {
            let Some(item) = items.next() else { break };
            running.push(call(item));
        }
        match running.next().await {
            None => return (done, failure),
            Some(Ok(())) => {
                done += 1;
                refused = 0;
                *window = (*window + 1).min(MOST);
            }
            Some(Err(error)) => {
                refused += 1;
                is_over |= refused == MOST_REFUSED || !is_of_one(&error);
                failure = failure.or(Some(error));
                *window = 1;
            }
        }
    }
}

/// Calls `call` for each item, [`MOST`] at a time, and goes on after failures; returns the results of successful calls and
/// the first failure.
pub async fn each<T, R, E, F>(items: Vec<T>, call: impl Fn(T) -> F) -> (Vec<R>, Option<E>)
where
    F: Future<Output = Result<R, E>>,
{
    let mut results = futures::stream::iter(items.into_iter().map(call)).buffer_unordered(MOST);
    let (mut done, mut failure) = (Vec::new(), None);
    while let Some(result) = results.next().await {
        match result {
            Ok(result) => done.push(result),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    (done, failure)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn more_run_at_a_time_with_every_success_and_none_after_a_failure() {
        let began = RefCell::new(Vec::new());
        let start = tokio::time::Instant::now();
        let call = |item: usize| {
            began.borrow_mut().push((item, start.elapsed().as_secs()));
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if item == 3 { Err(item) } else { Ok(()) }
            }
        };
        let mut window = 0;
        let (done, failure) = slow_start((0..20).collect(), &mut window, |_| false, call).await;
        assert_eq!(*began.borrow(), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]);
        assert_eq!((done, failure), (6, Some(3)));
        assert!(window < 8, "{window}: closed by the failure");
    }

    #[tokio::test]
    async fn a_failure_of_one_item_ends_nothing_and_many_in_a_row_end_it() {
        let call = |item: usize| async move { if item.is_multiple_of(3) || item >= 20 { Err(item) } else { Ok(()) } };
        let mut window = 0;
        let (done, failure) = slow_start((0..100).collect(), &mut window, |_| true, call).await;
        assert_eq!((done, failure, window), (13, Some(0), 1));
        let tried = RefCell::new(0);
        let call = |_| async {
            *tried.borrow_mut() += 1;
            Err::<(), _>(())
        };
        slow_start(vec![0; 100], &mut window, |()| true, call).await;
        assert_eq!(tried.into_inner(), MOST_REFUSED);
    }

    #[tokio::test]
    async fn a_failure_does_not_keep_the_others_from_being_called() {
        let (done, failure) = each(vec![1, 2, 3], |n| async move { if n == 2 { Err(n) } else { Ok(n) } }).await;
        assert_eq!((done, failure), (vec![1, 3], Some(2)));
    }
}
