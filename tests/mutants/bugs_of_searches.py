"""In searches and plans of several devices: what is compared, priced, sent, interrupted, drawn."""

from tests.mutants.bug import bug

BUGS = (
    bug(
        "a search on several devices trains on more samples in a step",
        "planner/search/space.py",
        "of_device = num_samples // count",
        "of_device = num_samples",
        "planner/test_search.py::test_groups_of_hybrid_sharding_are_those_of_a_machine",
        "planner/test_search.py::test_the_totals_on_several_devices_are_those_of_their_plans",
    ),
    bug(
        "the job of several devices is priced as one device",
        "planner/search/options.py",
        "return replace(self.place.job, num_devices=self.setting.num_devices)",
        "return self.place.job",
        "planner/test_search.py::test_the_totals_on_several_devices_are_those_of_their_plans",
    ),
    bug(
        "the runs that are compared with one run have smaller steps",
        "planner/run_or_runs.py",
        "passes = train.gradient_accumulation * parallel.devices",
        "passes = train.gradient_accumulation",
        "planner/test_several_devices.py::test_two_devices_or_two_runs_are_two_plans",
    ),
    bug(
        "what is stated about PCIe is not used",
        "planner/timing/interconnect.py",
        "if interconnect.pcie is not None:",
        "if interconnect.pcie is None:",
        "planner/timing/test_communication.py::test_a_stated_slot_decides_what_is_sent_inside",
    ),
    bug(
        "bytes of a network are taken for bits",
        "planner/timing/stated_links.py",
        '(_BITS_PER_BYTE if match.group(2)[1] == "B" else 1)',
        "1",
        "planner/timing/test_communication.py::test_links_are_read_as_data_sheets_write_them",
    ),
    bug(
        "an interrupted job does not start again",
        "planner/timing/spot.py",
        "count * _stretch_s(rate, job.start_s, length_s)",
        "count * _stretch_s(rate, 0.0, length_s)",
        "planner/timing/test_spot.py::test_the_closed_form_is_the_mean_of_simulated_jobs",
    ),
    bug(
        "several machines are interrupted as rarely as one",
        "planner/timing/spot.py",
        "self.interruptions_per_day * num_machines / _DAY_S",
        "self.interruptions_per_day / _DAY_S",
        "planner/test_several_devices.py::test_any_machine_interrupts_all_of_them",
    ),
    bug(
        "the checkpoint interval forgets Young's factor of two",
        "planner/timing/spot.py",
        "math.sqrt(2 * job.save_s / rate)",
        "math.sqrt(job.save_s / rate)",
        "planner/timing/test_spot.py::test_the_interval_is_that_of_young_where_saves_are_short",
    ),
    bug(
        "different cards train as fast as the fastest",
        "planner/timing/mixed_cards.py",
        "return max(_timed(step, traces, device, terms)",
        "return min(_timed(step, traces, device, terms)",
        "planner/test_several_devices.py::test_different_cards_wait_for_the_slowest_and_fit_the_smallest",
    ),
    bug(
        "the plot of a search is upside down",
        "reports/search_figure.py",
        "[one.usd for one in cloud]), self.bottom_px, self.top_px)",
        "[one.usd for one in cloud]), self.top_px, self.bottom_px)",
        "reports/test_search_page.py",
    ),
)
