//! Rate limits in virtual time.

use futures::TryFutureExt;
use tokio::sync::Semaphore;

use super::*;
use crate::http::number;

fn budget(limit: Limit) -> Budget {
    Budget::new(&[limit])
}

fn per_minute(requests_max: usize) -> Budget {
    budget(Limit::window(requests_max, Duration::from_secs(60)))
}

fn quota(left: usize) -> Option<Quota> {
    Some(Quota { left, resets: None })
}

const URGENT: Priority = Priority { urgency: Urgency::Urgent, has_begun: true };
const ORDINARY: Priority = Priority { urgency: Urgency::Ordinary, has_begun: true };

fn request(method: &str) -> Request<Bytes> {
    Request::builder().method(method).body(Bytes::new()).unwrap()
}

/// When each of `count` urgent requests is sent, if each is sent as soon as possible.
async fn times(budget: &Budget, count: usize) -> Vec<Instant> {
    let mut times = Vec::new();
    while times.len() < count {
        match budget.take(&request("POST"), URGENT).await {
            Ok(_) => times.push(Instant::now()),
            Err(NotSent { wait }) => tokio::time::sleep(wait).await,
        }
    }
    times
}

#[tokio::test(start_paused = true)]
async fn no_window_contains_more_requests_than_the_limit() {
    let times = times(&per_minute(10), 40).await;
    for (at, time) in times.iter().enumerate() {
        let within = times[at..].iter().filter(|other| **other < *time + Duration::from_secs(60)).count();
        assert!(within <= 10, "{within} requests within a minute");
    }
    assert_eq!(times[39] - times[0], 3 * (Duration::from_secs(60) + JITTER), "not slower than needed");
}

#[tokio::test(start_paused = true)]
async fn a_percentage_scales_a_limit() {
    let sent_in_a_minute = async |limit: Limit| {
        let (budget, began) = (budget(limit), Instant::now());
        let mut sent = 0;
        while began.elapsed() < Duration::from_secs(60) {
            match budget.take(&request("POST"), URGENT).await {
                Ok(_) => sent += 1,
                Err(NotSent { wait }) => tokio::time::sleep(wait).await,
            }
        }
        sent
    };
    let window = Limit::window(10, Duration::from_secs(60));
    assert_eq!(sent_in_a_minute(window.percent(50)).await, 5);
    assert_eq!(sent_in_a_minute(window.percent(1)).await, 1, "at least one");
    let bucket = Limit::bucket(|_| true, 100, 10);
    let of = [25, 100, 200].map(|percent| sent_in_a_minute(bucket.percent(percent)));
    let [quarter, whole, double] = futures::future::join_all(of).await.try_into().unwrap();
    assert!((170..=176).contains(&quarter) && (690..=696).contains(&whole), "{quarter} {whole}");
    assert!((1_385..=1_391).contains(&double), "{double}");
}

#[tokio::test(start_paused = true)]
async fn a_bucket_allows_its_burst_at_once_and_then_its_refill_rate() {
    let budget = budget(Limit::bucket(|_| true, 50, 5));
    let started = Instant::now();
    let times = times(&budget, 100).await;
    assert_eq!(times[47] - started, Duration::ZERO, "the burst minus the tolerance");
    assert_eq!(times[48] - started, Duration::from_millis(200));
    assert_eq!(times[99] - started, Duration::from_millis(52 * 200));
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    for _ in 0..48 {
        assert!(budget.try_take(&request("POST"), URGENT, Instant::now()).is_ok());
    }
    assert!(
        budget.try_take(&request("POST"), URGENT, Instant::now()).is_err(),
        "an idle bucket does not grow"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_stops_counting_only_after_its_response() {
    let bucket = Limit::bucket(|_| true, 10, 1);
    for (budget, least) in [(per_minute(10), 60_500), (budget(bucket), 1_000)] {
        let take = || budget.try_take(&request("POST"), URGENT, Instant::now());
        let slow: Vec<_> = (0..10).map(|_| take().ok()).collect();
        tokio::time::sleep(Duration::from_secs(5)).await;
        drop(slow);
        let next = take().err().map(|at| at - Instant::now());
        assert_eq!(next, Some(Duration::from_millis(least)), "the requests may have arrived just now");
        tokio::time::sleep(Duration::from_millis(least)).await;
        assert!(take().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_429_all_requests_wait() {
    let sent = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&sent);
    let full = move |_: Request<Bytes>| {
        *seen.lock().unwrap() += 1;
        let answer = ::http::Response::builder().status(429).header("retry-after", "17");
        std::future::ready(Ok(answer.body(Bytes::new()).unwrap()))
    };
    let full = budgeted(
        HttpService::new(tower::service_fn(full)),
        &[Limit::window(1_000, Duration::from_secs(60))],
        Counting::default(),
    );
    let ask = || full.clone().oneshot(request("PUT"));
    assert_eq!(ask().await.unwrap().status(), 429);
    for _ in 0..100 {
        let refused = ask().await.unwrap_err().downcast_ref::<NotSent>().copied();
        assert_eq!(refused, Some(NotSent { wait: Duration::from_secs(17) }));
    }
    assert_eq!(*sent.lock().unwrap(), 1);
    tokio::time::sleep(Duration::from_secs(17)).await;
    assert_eq!(ask().await.unwrap().status(), 429, "after the pause, requests are sent again");
}

#[tokio::test(start_paused = true)]
async fn each_project_has_its_own_limits_and_pauses() {
    let full = |request: Request<Bytes>| {
        let is_full = request.uri().path().contains("/full/");
        let answer = ::http::Response::builder().status(if is_full { 429 } else { 200 });
        std::future::ready(Ok(answer.header("retry-after", "17").body(Bytes::new()).unwrap()))
    };
    let limits = [Limit::window(10, Duration::from_secs(60))];
    let counting = crate::google::addresses::counting();
    let service = budgeted(HttpService::new(tower::service_fn(full)), &limits, counting);
    let ask = |project: &str| {
        let uri = format!("https://compute.invalid/compute/v1/projects/{project}/zones/z/instances");
        let request = Request::builder().method("PUT").uri(uri).body(Bytes::new()).unwrap();
        let answer = with_haste(Urgency::Urgent, service.clone().oneshot(request));
        answer.map_ok(|answer| answer.status().as_u16()).map_err(|_| "not sent")
    };
    assert_eq!((ask("full").await, ask("full").await), (Ok(429), Err("not sent")));
    for _ in 0..10 {
        assert_eq!(ask("other").await, Ok(200), "the other project has its own limit");
    }
    assert_eq!(ask("other").await, Err("not sent"));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_is_never_queued() {
    let budget = per_minute(8);
    let refresh = Priority { urgency: Urgency::Refresh, has_begun: false };
    let began = Instant::now();
    for expected in [true, true, false, false] {
        assert_eq!(budget.take(&request("GET"), refresh).await.is_ok(), expected);
    }
    assert!(budget.take(&request("PUT"), ORDINARY).await.is_ok(), "most of the limit is left");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn without_retry_after_throttled_requests_back_off_exponentially() {
    let limited = r#"{"error": {"errors": [{"reason": "rateLimitExceeded"}]}}"#;
    let other = r#"{"error": {"errors": [{"reason": "forbidden"}]}}"#;
    let sequence = [limited, limited, limited, other, limited].map(|body| (403, body));
    let answers = Arc::new(Mutex::new(VecDeque::from(sequence)));
    let answer = move |_: Request<Bytes>| {
        let (code, body) = answers.lock().unwrap().pop_front().unwrap_or((200, "{}"));
        std::future::ready(Ok(::http::Response::builder().status(code).body(Bytes::from(body)).unwrap()))
    };
    let limits = [Limit::window(1_000, Duration::from_secs(60))];
    let service =
        budgeted(HttpService::new(tower::service_fn(answer)), &limits, crate::google::addresses::counting());
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let began = Instant::now();
        with_haste(Urgency::Reading, service.clone().oneshot(request("GET"))).await.unwrap();
        pauses.push(began.elapsed().as_secs());
    }
    assert_eq!(pauses, [0, 1, 2, 4, 0, 1], "403 for a missing permission is no rate limit");
}

#[tokio::test(start_paused = true)]
async fn reads_that_are_accepted_do_not_end_the_backoff_of_changes() {
    let budget = per_minute(1_000);
    let take = |method: &str| budget.try_take(&request(method), URGENT, Instant::now());
    for seconds in [1, 2, 4] {
        take("POST").ok().unwrap().was_throttled(Some(Duration::ZERO));
        assert_eq!(take("POST").err().map(|at| at - Instant::now()), Some(Duration::from_secs(seconds)));
        tokio::time::sleep(Duration::from_millis(100)).await;
        take("GET").ok().unwrap().was_accepted();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
    take("POST").ok().unwrap().was_throttled(Some(Duration::from_secs(7)));
    assert_eq!(take("GET").err().map(|at| at - Instant::now()), Some(Duration::from_secs(7)), "Retry-After");
}

#[tokio::test(start_paused = true)]
async fn throttled_requests_of_one_burst_count_once() {
    let budget = per_minute(1_000);
    let take = || budget.try_take(&request("PUT"), URGENT, Instant::now());
    let burst: Vec<_> = (0..3).map(|_| take().ok().unwrap()).collect();
    burst[0].was_throttled(None);
    tokio::time::sleep(Duration::from_millis(400)).await;
    burst[1].was_throttled(None);
    burst[2].was_accepted();
    assert_eq!(take().err().map(|at| at - Instant::now()), Some(Duration::from_millis(600)));
    tokio::time::sleep(Duration::from_millis(600)).await;
    take().ok().unwrap().was_throttled(None);
    assert_eq!(take().err().map(|at| at - Instant::now()), Some(Duration::from_secs(2)));
}

#[tokio::test(start_paused = true)]
async fn requests_of_other_clients_count_until_a_response_shows_fewer() {
    let left = Arc::new(Mutex::new(0));
    let shown = Arc::clone(&left);
    let answer = move |_: Request<Bytes>| {
        let left = shown.lock().unwrap().to_string();
        std::future::ready(Ok(::http::Response::builder().header("left", left).body(Bytes::new()).unwrap()))
    };
    let limit =
        Limit::window(100, Duration::from_secs(3_600)).with_quota(|headers| quota(number(headers, "left")?));
    let service = budgeted(HttpService::new(tower::service_fn(answer)), &[limit], Counting::default());
    // Sends a request, after which this many are left. Returns how long it would have to wait if it is not sent.
    let ask = async |urgency, left_after| {
        *left.lock().unwrap() = left_after;
        let asked = with_haste(urgency, service.clone().oneshot(request("PUT"))).await;
        asked.err().map(|error| error.downcast_ref::<NotSent>().unwrap().wait.as_secs())
    };
    assert_eq!(ask(Urgency::Ordinary, 2).await, None);
    assert_eq!(ask(Urgency::Urgent, 1).await, None);
    assert_eq!(ask(Urgency::Urgent, 0).await, None);
    assert_eq!(ask(Urgency::Ordinary, 0).await, Some(60), "none is left");
    let began = Instant::now();
    assert_eq!(ask(Urgency::Urgent, 50).await, None, "it finds out that the other requests no longer count");
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert_eq!(ask(Urgency::Ordinary, 49).await, None);
}

#[tokio::test(start_paused = true)]
async fn one_request_at_a_time_finds_out_what_is_left() {
    let budget = budget(Limit::window(10, Duration::from_secs(3_600)).with_quota(|_| quota(0)));
    let take = || budget.try_take(&request("PUT"), URGENT, Instant::now());
    take().ok().unwrap().record_quota(&HeaderMap::new());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let first = take().ok();
    assert_eq!(take().err().map(|at| at - Instant::now()), Some(Duration::from_secs(1)));
    drop(first);
    assert!(take().is_ok(), "the response reported no quota");
    tokio::time::sleep(Duration::from_secs(3_601)).await;
    let sent: Vec<_> = (0..20).map_while(|_| take().ok()).collect();
    assert_eq!(sent.len(), 10, "after a whole window the reported quota no longer counts");
}

#[tokio::test(start_paused = true)]
async fn a_limit_above_the_providers_follows_the_reported_quota() {
    let limit = Limit::window(1_000_000, Duration::from_secs(3_600));
    let budget = budget(limit.with_quota(|_| quota(10)));
    let take = || budget.try_take(&request("PUT"), ORDINARY, Instant::now());
    take().ok().unwrap().record_quota(&HeaderMap::new());
    let sent: Vec<_> = (0..20).map_while(|_| take().ok()).collect();
    assert!((9..=10).contains(&sent.len()), "{}", sent.len());
}

#[tokio::test(start_paused = true)]
async fn detaches_get_a_part_of_what_other_clients_leave() {
    let limit = Limit::window(5_000, Duration::from_secs(3_600)).with_quota(|_| quota(499));
    let (budget, detaching) = (budget(limit), Priority { urgency: Urgency::Detaching, has_begun: false });
    let take = |priority| budget.try_take(&request("PUT"), priority, Instant::now());
    take(detaching).ok().unwrap().record_quota(&HeaderMap::new());
    let sent: Vec<_> = (0..500).map_while(|_| take(detaching).ok()).collect();
    assert_eq!(sent.len(), 429, "86 % of the 500 that others leave");
}

#[tokio::test(start_paused = true)]
async fn an_urgent_request_does_not_wait_until_the_quota_resets() {
    let limit = Limit::window(10, Duration::from_secs(3_600)).with_quota(|_| quota(0));
    let budget = budget(limit);
    budget.try_take(&request("PUT"), URGENT, Instant::now()).ok().unwrap().record_quota(&HeaderMap::new());
    let waits = |priority| {
        let at = budget.try_take(&request("PUT"), priority, Instant::now()).err().unwrap();
        (at - Instant::now()).as_secs()
    };
    assert_eq!((waits(URGENT), waits(ORDINARY)), (1, 60));
}

#[tokio::test(start_paused = true)]
async fn tokens_that_other_clients_took_are_missing_in_a_bucket() {
    let budget = budget(Limit::bucket(|_| true, 100, 10).with_quota(|_| quota(20)));
    let take = || budget.try_take(&request("PUT"), URGENT, Instant::now());
    take().ok().unwrap().record_quota(&HeaderMap::new());
    let sent: Vec<_> = (0..100).map_while(|_| take().ok()).collect();
    assert!((15..=20).contains(&sent.len()), "{}", sent.len());
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_forgotten_when_nothing_counts_any_more() {
    let limits = vec![Limit::window(1, Duration::from_secs(60)), Limit::bucket(|_| true, 10, 1)];
    let budgets = Budgets { limits, of_units: Mutex::default() };
    let known = || budgets.of_units.lock().unwrap().keys().cloned().collect::<Vec<_>>();
    let take = |unit: &str| budgets.of(unit).try_take(&request("POST"), URGENT, Instant::now());
    let in_flight = take("a").ok();
    drop(take("b"));
    tokio::time::sleep(Duration::from_secs(50)).await;
    budgets.of("c");
    assert_eq!(known(), ["a", "b", "c"]);
    tokio::time::sleep(Duration::from_secs(50)).await;
    budgets.of("d");
    assert_eq!(known(), ["a", "d"], "the request of b no longer counts");
    drop(in_flight);
    assert!(take("a").is_err(), "its response has just arrived");
}

#[tokio::test(start_paused = true)]
async fn a_request_in_flight_counts_until_its_response() {
    for budget in [per_minute(10), budget(Limit::bucket(|_| true, 10, 1))] {
        let take = || budget.try_take(&request("POST"), URGENT, Instant::now());
        let slow: Vec<_> = (0..10).map(|_| take().ok()).collect();
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert!(take().is_err());
        drop(slow);
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert!(take().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_starts_at_the_response_or_error_of_a_slow_request() {
    let slow = |_| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Err::<::http::Response<Bytes>, _>(tower::BoxError::from("no"))
    };
    let service = budgeted(
        HttpService::new(tower::service_fn(slow)),
        &[Limit::window(1, Duration::from_secs(60)), Limit::window(100, Duration::from_secs(60))],
        Counting::default(),
    );
    let started = Instant::now();
    for _ in 0..2 {
        let asked = service.clone().oneshot(request("GET"));
        assert!(with_haste(Urgency::Reading, asked).await.is_err());
    }
    assert_eq!(started.elapsed(), Duration::from_millis(5_000 + 60_500 + 5_000));
}

#[tokio::test(start_paused = true)]
async fn an_ordinary_request_waits_only_until_the_reserve_is_free() {
    let budget = per_minute(40);
    let started = Instant::now();
    for _ in 0..40 {
        budget.take(&request("POST"), URGENT).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let at = budget.try_take(&request("POST"), ORDINARY, Instant::now()).err();
    assert_eq!(at, Some(started + Duration::from_millis(60_500 + 2_000)), "three requests must expire");
}

#[tokio::test(start_paused = true)]
async fn a_limit_does_not_delay_requests_that_it_does_not_count() {
    let budget = budget(Limit::bucket(|request| request.method() == "PUT", 1, 1));
    let put = || budget.try_take(&request("PUT"), URGENT, Instant::now());
    assert!(put().is_ok());
    assert!(put().is_err());
    assert!(budget.try_take(&request("GET"), ORDINARY, Instant::now()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn parts_of_each_limit_are_reserved_by_rank() {
    let window = (per_minute(100), [25, 61, 9, 0, 5, 0]);
    let bucket = (budget(Limit::bucket(|_| true, 100, 1)), [25, 62, 0, 5, 5, 3]);
    for (budget, expected) in [window, bucket] {
        let first = |priority| Priority { has_begun: false, ..priority };
        let detaching = Priority { urgency: Urgency::Detaching, has_begun: false };
        let refresh = Priority { urgency: Urgency::Refresh, has_begun: false };
        let sent = [refresh, detaching, first(ORDINARY), ORDINARY, first(URGENT), URGENT].map(|priority| {
            let take = || budget.try_take(&request("POST"), priority, Instant::now()).ok();
            std::iter::from_fn(take).count()
        });
        assert_eq!(sent, expected, "each rank gets what the ranks before it left");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_has_read_writes_before_other_steps_read() {
    let service = HttpService::new(tower::service_fn(|_| async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok::<_, tower::BoxError>(::http::Response::new(Bytes::new()))
    }));
    let service = budgeted(service, &[Limit::bucket(|_| true, 250, 25)], Counting::default());
    let ask = || service.clone().oneshot(request("GET"));
    let (concurrency, reads) = (Semaphore::new(64), Cell::new(0));
    let read_and_write = async || {
        let _permit = concurrency.acquire().await;
        let read = ask().inspect_ok(|_| reads.update(|so_far| so_far + 1));
        with_haste(Urgency::Urgent, read.and_then(|_| ask())).await
    };
    let step = async || {
        while let Err(error) = read_and_write().await {
            let NotSent { wait } = *error.downcast().unwrap();
            tokio::time::sleep(wait).await;
        }
    };
    futures::future::join_all((0..1_000).map(|_| step())).await;
    assert!(reads.get() < 1_020, "{} reads for 1000 steps", reads.get());
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_get_distinct_turns_and_use_the_full_rate() {
    for (budget, longest) in [(per_minute(10), 4 * 60_500), (budget(Limit::bucket(|_| true, 10, 1)), 40_000)]
    {
        let started = Instant::now();
        let one = async || {
            let mut tries = 0;
            while let Err(NotSent { wait }) = budget.take(&request("POST"), URGENT).await {
                tries += 1;
                tokio::time::sleep(wait).await;
            }
            tries
        };
        let tries = futures::future::join_all((0..50).map(|_| one())).await;
        assert_eq!(started.elapsed(), Duration::from_millis(longest));
        assert!(tries.iter().all(|tries| *tries <= 1), "a turn was not kept: {tries:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_turn_is_far_away_returns_at_once() {
    let (budget, started) = (budget(Limit::bucket(|_| true, 10, 1)), Instant::now());
    let one = async || {
        let refused = budget.take(&request("POST"), URGENT).await.err();
        (refused.map(|NotSent { wait }| wait), started.elapsed())
    };
    let results = futures::future::join_all((0..50).map(|_| one())).await;
    for (at, result) in results.into_iter().enumerate() {
        let turn = Duration::from_secs(at.saturating_sub(9) as u64);
        let expected = if turn > WAIT_MAX { (Some(turn), Duration::ZERO) } else { (None, turn) };
        assert_eq!(result, expected, "{at}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordinary_request_queues_behind_urgent_ones() {
    let (budget, minute) = (per_minute(10), Duration::from_secs(60) + JITTER);
    times(&budget, 10).await;
    let turn = |priority| budget.turn(&request("POST"), priority, Instant::now()) - Instant::now();
    assert_eq!(turn(ORDINARY), minute);
    for _ in 0..10 {
        assert_eq!(turn(URGENT), minute, "not behind an ordinary request");
    }
    assert_eq!(turn(ORDINARY), 2 * minute);
    assert_eq!(turn(URGENT), 2 * minute);
}

#[tokio::test(start_paused = true)]
async fn a_listing_waits_for_its_turn_instead_of_failing() {
    let budget = per_minute(1);
    budget.take(&request("POST"), URGENT).await.unwrap();
    let started = Instant::now();
    assert!(budget.take(&request("POST"), URGENT).await.is_err());
    budget.take(&request("GET"), Priority { urgency: Urgency::Reading, has_begun: true }).await.unwrap();
    assert_eq!(started.elapsed(), Duration::from_secs(60) + JITTER);
}
