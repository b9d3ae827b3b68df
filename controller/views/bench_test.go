package views_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkList lists attachments as kubectl does, a page of 500 and all pages, of nodes with 99 attachments in three applications each.
// Agents answer at once, in this process, which counts as well.
func BenchmarkList(b *testing.B) {
	for _, nodes := range []int{1000, 5000} {
		f := newFleet(b, nodes, 33)
		for name, path := range map[string]string{"namespace": "/namespaces/team-a/bpfattachments", "all": "/bpfattachments"} {
			for pages, most := range map[string]int{"first": 1, "every": 1 << 20} {
				b.Run(fmt.Sprintf("nodes=%d/%s/%s", nodes, name, pages), func(b *testing.B) {
					b.ReportAllocs()
					var bytes, rows, asked int
					for b.Loop() {
						bytes, rows, asked = f.pages(b, path, most)
					}
					b.ReportMetric(float64(bytes), "bytes-sent/op")
					b.ReportMetric(float64(rows), "rows/op")
					b.ReportMetric(float64(asked), "nodes-asked/op")
				})
			}
		}
	}
}

// pages lists at most so many pages as tables.
func (f *fleet) pages(b *testing.B, path string, most int) (bytes, rows, asked int) {
	b.Helper()
	token := ""
	asked = len(f.asks(func() {
		for range most {
			r := httptest.NewRequest(http.MethodGet, base+path+"?limit=500&continue="+token, nil)
			r.Header.Set("Accept", asTable)
			r.Header.Set("X-Remote-User", fmt.Sprint("user-", f.users.Add(1)))
			w := httptest.NewRecorder()
			f.served.ServeHTTP(w, r)
			bytes += w.Body.Len()
			var table metav1.Table
			if err := json.Unmarshal(w.Body.Bytes(), &table); err != nil || w.Code != http.StatusOK {
				b.Fatal(w.Code, err)
			}
			rows += len(table.Rows)
			if token = table.Continue; token == "" {
				return
			}
		}
	}))
	return bytes, rows, asked
}
