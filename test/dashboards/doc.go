// Package dashboards evaluates every expression of the chart's dashboards and alerts by Prometheus' own engine, against scrapes of the
// real binaries. It makes no scrape: TestDashboardsAndAlerts of test/integration does, and runs the tests here with the folder of the
// scrapes in SKEP_SCRAPES.
//
// It is a module of its own, so that Skep's does not depend on Prometheus; it imports nothing of Skep.
package dashboards
