package listen

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/time/rate"
)

// The bounds of what is logged of scrapes: whose maps are exported has a part in how often, and in what it says.
const (
	errorEvery = time.Minute
	errorSize  = 1024
)

// Continue has a scrape answer all series but those that cannot be shown, such as two that contradict each other: one hides no other. These
// are counted in the registry, and logged once in a minute.
func Continue(o *promhttp.HandlerOpts, registry prometheus.Registerer, log *slog.Logger) {
	o.ErrorHandling, o.Registry = promhttp.ContinueOnError, registry
	o.ErrorLog = &scrapeLog{log: log, sometimes: rate.Sometimes{First: 1, Interval: errorEvery}}
}

// scrapeLog is the promhttp.Logger of a registry.
type scrapeLog struct {
	log       *slog.Logger
	sometimes rate.Sometimes
}

// Println implements promhttp.Logger.
func (l *scrapeLog) Println(said ...any) {
	l.sometimes.Do(func() {
		message := fmt.Sprint(said...)
		l.log.Error("some metrics are left out of scrapes, see promhttp_metric_handler_errors_total", "error",
			strings.ToValidUTF8(message[:min(len(message), errorSize)], ""))
	})
}
