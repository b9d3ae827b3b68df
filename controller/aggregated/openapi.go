package aggregated

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"
)

// registerOpenAPI serves the documents of APIs, and the list by which kube-apiserver finds them.
func registerOpenAPI(mux *http.ServeMux, apis []API) {
	type found struct {
		URL string `json:"serverRelativeURL"`
	}
	paths := map[string]found{}
	for _, api := range apis {
		if api.OpenAPI == nil {
			continue
		}
		sum := sha256.Sum256(api.OpenAPI)
		hash, where := hex.EncodeToString(sum[:]), "/openapi/v3"+api.Base()
		paths["apis/"+api.groupVersion()] = found{where + "?hash=" + hash}
		mux.HandleFunc("GET "+where, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("ETag", `"`+hash+`"`)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(api.OpenAPI))
		})
	}
	mux.HandleFunc("GET /openapi/v3", func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, http.StatusOK, map[string]any{"paths": paths})
	})
}
