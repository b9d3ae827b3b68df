package serve

// Consumers is how many ring buffers have a consumer: to ask as a reader would take the place.
func (s *Server) Consumers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.consumers)
}

// Owners is how many owners have a pace.
func (s *Server) Owners() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.paces)
}
